package bootstrap

import (
	"fmt"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
)

// relayConfiguration is where the nostr-relay program of the catalogue reads its
// configuration.
const relayConfiguration = "/run/agentbox/nostr-relay.toml"

// relayFile is the configuration of nostr-rs-relay, limited to what the manifest can set. The key
// names are those of nostr-rs-relay's config.toml.
type relayFile struct {
	Info struct {
		Name        string `toml:"name"`
		Description string `toml:"description"`
		Contact     string `toml:"contact,omitempty"`
	} `toml:"info"`
	Database struct {
		DataDirectory string `toml:"data_directory"`
	} `toml:"database"`
	Network struct {
		Address string `toml:"address"`
		Port    int    `toml:"port"`
	} `toml:"network"`
	Limits struct {
		MessagesPerSec     int64   `toml:"messages_per_sec"`
		MaxEventBytes      int64   `toml:"max_event_bytes"`
		MaxWSMessageBytes  int64   `toml:"max_ws_message_bytes"`
		MaxWSFrameBytes    int64   `toml:"max_ws_frame_bytes"`
		EventKindAllowlist []int64 `toml:"event_kind_allowlist"`
	} `toml:"limits"`
	Authorization struct {
		PubkeyWhitelist *[]string `toml:"pubkey_whitelist,omitempty"`
		NIP42Auth       bool      `toml:"nip42_auth"`
		NIP42DMs        bool      `toml:"nip42_dms"`
	} `toml:"authorization"`
	Retention *relayRetention `toml:"retention,omitempty"`
}

type relayRetention struct {
	PersistDays int64 `toml:"persist_days"`
}

// configuration is a file that a program of the catalogue reads. path is the path inside the box.
type configuration struct {
	path    string
	content []byte
}

// configurations are the files for programs of the catalogue that are derived from the manifest.
// own are the public keys of the box and its operator, 64 hexadecimal digits each. Under the
// allowlist policy these keys may always write.
func configurations(v catalog.View, roots Roots, own []string) ([]configuration, error) {
	r := v.Manifest.SovereignMesh.Relay
	if !r.Enabled || r.Implementation != RelayProgram {
		return nil, nil
	}
	text, err := toml.Marshal(relayConfig(r, roots, own))
	if err != nil {
		return nil, fmt.Errorf("cannot write the relay's configuration: %w", err)
	}
	return []configuration{{path: relayConfiguration, content: text}}, nil
}

func relayConfig(r schema.Relay, roots Roots, own []string) relayFile {
	var c relayFile
	c.Info.Name, c.Info.Description, c.Info.Contact = "agentbox", r.InfoDescription, r.InfoContact
	c.Database.DataDirectory = roots.Path(r.DataDir)
	c.Network.Address, c.Network.Port = r.Bind, r.Port
	c.Limits.MessagesPerSec, c.Limits.MaxEventBytes = r.MessagesPerSec, r.MaxEventBytes
	c.Limits.MaxWSMessageBytes, c.Limits.MaxWSFrameBytes = r.MaxEventBytes, r.MaxEventBytes
	c.Limits.EventKindAllowlist = relayKinds(r)
	if r.IngressPolicy == "allowlist" {
		// An empty list is written too: if the key were missing, the relay would let all clients
		// write.
		keys := hardening.Union(hardening.Union(nil, own), r.AllowedPubkeys)
		if keys == nil {
			keys = []string{}
		}
		c.Authorization.PubkeyWhitelist = &keys
	}
	// The relay gives gift wraps only to their recipients, and it identifies a recipient only by
	// AUTH.
	c.Authorization.NIP42Auth = r.IngressPolicy != "open"
	c.Authorization.NIP42DMs = c.Authorization.NIP42Auth
	if r.RetentionDays > 0 {
		c.Retention = &relayRetention{PersistDays: r.RetentionDays}
	}
	return c
}

// meshKinds are the first kinds of two ranges of a hundred kinds: intents and answers. The relay's
// list cannot contain a range, and the first kind alone is not enough.
var meshKinds = []int64{38000, 38100}

const (
	kindRange         = 100
	kindDirectMessage = 4 // NIP-04
)

func relayKinds(r schema.Relay) []int64 {
	var kinds []int64
	for _, k := range r.AllowedKinds {
		n := int64(1)
		if slices.Contains(meshKinds, k) {
			n = kindRange
		}
		for i := range n {
			kinds = append(kinds, k+i)
		}
	}
	if r.AllowNIP04 {
		kinds = append(kinds, kindDirectMessage)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
