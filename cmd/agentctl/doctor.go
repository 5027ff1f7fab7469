package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/compose"
)

// link is one comparison in the chain from the manifest to the running box.
type link struct {
	Link     string    `json:"link"`
	What     string    `json:"what"`
	State    linkState `json:"state"`
	Expected string    `json:"expected,omitempty"`
	Actual   string    `json:"actual,omitempty"`
	Hint     string    `json:"hint,omitempty"`
}

// linkState is the outcome of a comparison.
type linkState string

const (
	linkOK      linkState = "ok"
	linkDrift   linkState = "drift"
	linkSkipped linkState = "skipped" // there was no value to compare with
)

// compared is a link whose two sides should be equal.
func compared(name, what, expected, actual, hint string) link {
	if expected == actual {
		return link{Link: name, What: what, State: linkOK, Expected: expected, Actual: actual}
	}
	return link{Link: name, What: what, State: linkDrift, Expected: expected, Actual: actual, Hint: hint}
}

func skipped(name, what, why string) link {
	return link{Link: name, What: what, State: linkSkipped, Hint: why}
}

type doctorOptions struct{ compose, image, system string }

func newDoctor(c *cli) *cobra.Command {
	o := &doctorOptions{}
	cmd := &cobra.Command{
		Use:   "doctor [FILE]",
		Short: "Compare the manifest, its descriptions and the running box",
		Long: `Compare what FILE declares with the compose file, the image, and the running
box: its listeners, /v1/meta and the adapters in use. Show every difference,
also those that the box itself has found (contract drift), and what to do about
each.

FILE is by default the manifest of the running box, else $AGENTBOX_CONFIG, else
agentbox.toml, else /etc/agentbox.toml. The compose file is by default
docker-compose.yml or compose.yaml beside FILE, when there is one.

Exit status: 0 no difference, 1 a difference or the manifest is invalid,
2 wrong command line, 4 the box cannot be reached (doctor compares the files all
the same).`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkSystem(o.system); err != nil {
				return err
			}
			return c.doctor(cmd.Context(), o, args)
		},
	}
	cmd.Flags().StringVar(&o.compose, "compose", "", "the compose `FILE` to compare")
	cmd.Flags().StringVar(&o.image, "image", "", "the image configuration `FILE` to compare (what agentctl generate image or podman image inspect prints, or an OCI configuration)")
	cmd.Flags().StringVar(&o.system, "system", catalog.System(), "system of the image, as Nix names it")
	return cmd
}

func (c *cli) doctor(ctx context.Context, o *doctorOptions, args []string) error {
	name := c.boxManifest(ctx, args)
	box, text, err := c.box(compose.Input{System: o.system}, name)
	if err != nil {
		return err
	}
	links := c.composeLinks(box, cmp.Or(o.compose, composeBeside(name)), o.compose != "")
	links = append(links, imageLinks(box, o.image)...)
	running, err := c.runningLinks(ctx, box, text)
	links = append(links, running...)
	if printErr := c.printLinks(name, links); printErr != nil {
		return &exitError{exitFailure, printErr}
	}
	if err != nil {
		return failed(err)
	}
	if n := drifted(links); n > 0 {
		return &exitError{exitFailure, fmt.Errorf("%d of %d links differ", n, len(links))}
	}
	return nil
}

// boxManifest is the manifest of the box: the named one, otherwise that of the running box if it
// can be read here, otherwise one in the usual places.
func (c *cli) boxManifest(ctx context.Context, args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	if boot, err := c.client().Boot(ctx); err == nil && boot.Manifest != "" {
		if _, err := os.Stat(boot.Manifest); err == nil {
			return boot.Manifest
		}
	}
	return c.manifestArg(nil)
}

// composeBeside is the compose file in the manifest's directory, or "" if there is none.
func composeBeside(manifest string) string {
	for _, name := range []string{"docker-compose.yml", "compose.yaml"} {
		path := filepath.Join(filepath.Dir(manifest), name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// maxSmallFile limits the size of a compose file and of the configuration of an image.
const maxSmallFile = 1 << 20

// composeLinks compares [observability] and the ports with a compose file.
func (c *cli) composeLinks(box *compose.Box, path string, asked bool) []link {
	const name = "compose"
	if path == "" {
		return []link{skipped(name, "file", "no compose file beside the manifest; name one with --compose")}
	}
	again := "make it again: agentctl generate compose -o " + path
	text, err := readAtMost(path, maxSmallFile)
	if err != nil && !asked {
		return []link{skipped(name, path, err.Error())}
	}
	var d described
	if err == nil {
		d, err = readCompose(text, c.lookupEnv)
	}
	if err != nil {
		return []link{{Link: name, What: path, State: linkDrift, Expected: "a compose file", Actual: err.Error(), Hint: again}}
	}
	var out []link
	for _, variable := range slices.Sorted(maps.Keys(box.Fixed)) {
		actual, stated := d.Environment[variable]
		if !stated {
			actual = "(not stated)"
		}
		out = append(out, compared(name, variable, box.Fixed[variable], actual, again))
	}
	var published []int
	for _, p := range box.Ports {
		if p.Published {
			published = append(published, p.Number)
		}
	}
	out = append(out, portLinks(name, "published", published, d.Ports, again)...)
	for _, text := range d.Unread {
		out = append(out, link{Link: name, What: "port " + text, State: linkDrift, Expected: "a port", Actual: text, Hint: again})
	}
	return out
}

// portLinks compares two sets of ports. Each port of either set gets a link.
func portLinks(name, word string, want, have []int, hint string) []link {
	all := slices.Concat(want, have)
	slices.Sort(all)
	said := func(list []int, n int) string {
		if slices.Contains(list, n) {
			return word
		}
		return "not " + word
	}
	var out []link
	for _, n := range slices.Compact(all) {
		out = append(out, compared(name, "port "+strconv.Itoa(n), said(want, n), said(have, n), hint))
	}
	return out
}

// imageLinks compares the ports with the exposed ones of an image.
func imageLinks(box *compose.Box, path string) []link {
	const name = "image"
	if path == "" {
		return []link{skipped(name, "ExposedPorts", "name the image's configuration with --image")}
	}
	const hint = "build the image from this manifest"
	text, err := readAtMost(path, maxSmallFile)
	var exposed []int
	if err == nil {
		exposed, err = readImage(text)
	}
	if err != nil {
		return []link{{Link: name, What: path, State: linkDrift, Expected: "an image configuration", Actual: err.Error(), Hint: hint}}
	}
	var want []int
	for _, p := range box.Ports {
		if p.Exposed {
			want = append(want, p.Number)
		}
	}
	return portLinks(name, "exposed", want, exposed, hint)
}

// boxHealth is what /health says that doctor looks at.
type boxHealth struct {
	Listeners []struct {
		Name    string `json:"name"`
		Address string `json:"address"`
		Bound   bool   `json:"bound"`
		Reason  string `json:"reason"`
	} `json:"listeners"`
	Drift []struct {
		Surface  string `json:"surface"`
		Kind     string `json:"drift_kind"`
		Expected string `json:"expected"`
		Actual   string `json:"actual"`
		Severity string `json:"severity"`
	} `json:"contract_drift"`
	Adapters []slotHealth `json:"adapters"`
}

// boxMeta is what /v1/meta says that doctor looks at.
type boxMeta struct {
	Checksum      string `json:"manifest_checksum"`
	Federation    string `json:"federation_mode"`
	Observability struct {
		Metrics string `json:"metrics_endpoint"`
		OTLP    string `json:"otlp_endpoint"`
	} `json:"observability"`
	Impls     map[string]string `json:"adapter_impls"` // slot to what is wanted
	Contracts map[string]string `json:"adapter_contract_versions"`
}

// runningLinks compares the manifest with the box that answers on the control socket.
func (c *cli) runningLinks(ctx context.Context, box *compose.Box, text []byte) ([]link, error) {
	client := c.client()
	rawMeta, err := client.Meta(ctx)
	if err != nil {
		return []link{skipped("box", client.Socket(), "not compared: "+err.Error())}, err
	}
	rawHealth, err := client.Health(ctx)
	if err != nil {
		return nil, err
	}
	level, err := client.LogLevel(ctx)
	if err != nil {
		return nil, err
	}
	var meta boxMeta
	var health boxHealth
	if err := errors.Join(json.Unmarshal(rawMeta, &meta), json.Unmarshal(rawHealth, &health)); err != nil {
		return nil, fmt.Errorf("cannot read what the box says of itself: %w", err)
	}
	out := metaLinks(box, text, meta)
	out = append(out, listenerLinks(box, health, meta)...)
	out = append(out, slotLinks(box.Manifest, meta, health)...)
	out = append(out, compared("log-level", "AGENTBOX_LOG_LEVEL", box.Manifest.LogLevel(), level.Level,
		"it was changed while running, or AGENTBOX_LOG_LEVEL differs: agentctl log-level "+box.Manifest.LogLevel()))
	return append(out, driftLinks(health)...), nil
}

func metaLinks(box *compose.Box, text []byte, meta boxMeta) []link {
	sum := sha256.Sum256(text)
	return []link{
		compared("manifest", "manifest_checksum", "sha256:"+hex.EncodeToString(sum[:]), meta.Checksum,
			"the box runs another manifest: agentctl apply reads its file again, a mounted file may need a restart"),
		compared("meta", "federation_mode", cmp.Or(box.Manifest.Federation.Mode, "standalone"), meta.Federation,
			"the box was started from another manifest"),
		compared("meta", "otlp_endpoint", schema.PublicURL(box.Manifest.Observability.OTLPEndpoint), meta.Observability.OTLP,
			"restart the box with this manifest, and see AGENTBOX_OTLP_ENDPOINT"),
	}
}

const notBound = "not bound: "

// listenerLinks compares the ports of the manifest with the bound ports, and /v1/meta with both.
func listenerLinks(box *compose.Box, health boxHealth, meta boxMeta) []link {
	bound := map[string]string{}
	for _, l := range health.Listeners {
		if bound[l.Name] = portOf(l.Address); !l.Bound {
			bound[l.Name] = notBound + cmp.Or(l.Reason, "no reason given")
		}
	}
	var out []link
	for _, l := range []struct{ name, variable string }{
		{"management", "MANAGEMENT_API_PORT"}, {"metrics", "AGENTBOX_METRICS_PORT"},
	} {
		want, have := declaredPort(box, l.name), cmp.Or(bound[l.name], "off")
		if want == "0" && portNumber(have) {
			want = have
		}
		hint := "restart the box if this port is new in the manifest; otherwise see whether " + l.variable + " sets another port"
		if strings.HasPrefix(have, notBound) {
			hint = "mend what ACTUAL names, such as another process on this port; agentinit tries again every few seconds"
		}
		out = append(out, compared("bound", l.name, want, have, hint))
	}
	metrics := cmp.Or(bound["metrics"], "off")
	if !portNumber(metrics) {
		metrics = "off"
	}
	return append(out, compared("meta", "metrics_endpoint", metrics, cmp.Or(urlPort(meta.Observability.Metrics), "off"),
		"/v1/meta and the listener disagree: restart the box"))
}

// declaredPort is the port of one of agentinit's own listeners, or "off".
func declaredPort(box *compose.Box, name string) string {
	for _, p := range box.Ports {
		if p.Name == name {
			return strconv.Itoa(p.Number)
		}
	}
	return "off"
}

func portOf(address string) string {
	_, port := catalog.SplitAddress(address)
	return port
}

// urlPort is the port in a URL, or "" for a text that is not a URL.
func urlPort(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Port()
}

func portNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// driftLinks are the differences that the box itself has found between it and its contract:
// environment, capabilities, root, mounts, image.
func driftLinks(health boxHealth) []link {
	if len(health.Drift) == 0 {
		return []link{{Link: "contract", What: "drift detector", State: linkOK}}
	}
	var out []link
	for _, d := range health.Drift {
		out = append(out, link{
			Link: "contract", What: d.Surface, State: linkDrift, Expected: d.Expected, Actual: d.Actual,
			Hint: d.Kind + " (" + d.Severity + "): start the box as agentctl generate describes it",
		})
	}
	return out
}

func drifted(links []link) (n int) {
	for _, l := range links {
		if l.State == linkDrift {
			n++
		}
	}
	return n
}

func (c *cli) printLinks(manifest string, links []link) error {
	if c.json {
		return c.printJSON(struct {
			Manifest string `json:"manifest"`
			Drifted  int    `json:"drifted"`
			Links    []link `json:"links"`
		}{manifest, drifted(links), links})
	}
	colour := map[linkState]string{linkOK: green, linkDrift: red, linkSkipped: dim}
	rows := make([][]cell, len(links))
	for i, l := range links {
		rows[i] = texts(l.Link, l.What, string(l.State), short(l.Expected), short(l.Actual))
		rows[i][2].Style = colour[l.State]
	}
	c.table([]column{{Title: "LINK"}, {Title: "WHAT"}, {Title: "STATE"}, {Title: "EXPECTED", Max: 30}, {Title: "ACTUAL"}}, rows)
	said := map[string]bool{}
	for _, l := range links {
		if text := l.Link + ": " + printable(l.Hint); l.Hint != "" && !said[text] {
			said[text] = true
			line(c.stdout, "%s", text)
		}
	}
	return nil
}

// short shortens a checksum to a part that is enough to tell two apart.
func short(text string) string {
	const prefix, digits = "sha256:", 12
	if strings.HasPrefix(text, prefix) && len(text) > len(prefix)+digits {
		return text[:len(prefix)+digits] + "…"
	}
	return text
}
