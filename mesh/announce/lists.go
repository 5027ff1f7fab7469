package announce

import (
	"context"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// Kinds of the lists. Of each, a relay keeps only the newest list of a key.
const (
	KindRelays = 10002 // NIP-65: where the box writes, and where it reads
	KindInbox  = 10050 // NIP-17: where private messages reach the box
)

// listTries is how often a relay that refuses a list for the moment is asked, before the next
// connection to any relay begins anew.
const listTries = 8

// Use is a relay that others can reach, and what the box does there.
type Use struct {
	URL           string
	Writes, Reads bool
}

// ListsConfig is the configuration of RunLists. All fields are required.
type ListsConfig struct {
	Uses   []Use
	Signer Signer
	Relays Publisher
	Box    func() string // public key of the box; it may be rotated
	// Connected has an element after a relay has connected.
	Connected <-chan struct{}
	// Report is called when a relay refuses a list permanently.
	Report func(what string, fields map[string]any)
}

// RunLists tells the relays which relays the box uses, until ctx ends: others find there how to reach
// the box. A box that uses none tells nothing. Each relay gets the lists when it has connected, and
// again after each new connection.
func RunLists(ctx context.Context, c ListsConfig) {
	var lists []nostr.Event
	for of := ""; len(c.Uses) > 0; {
		select {
		case <-c.Connected:
		case <-ctx.Done():
			return
		}
		if box := c.Box(); box != of {
			of, lists = box, listsOf(c.Uses, time.Now())
		}
		for i := range lists {
			c.publish(ctx, &lists[i])
		}
	}
}

// listsOf returns the unsigned lists.
func listsOf(uses []Use, now time.Time) []nostr.Event {
	at := nostr.Timestamp(now.Unix())
	relays := nostr.Event{Kind: KindRelays, CreatedAt: at}
	inbox := nostr.Event{Kind: KindInbox, CreatedAt: at}
	for _, u := range uses {
		tag := nostr.Tag{"r", u.URL}
		switch {
		case !u.Reads:
			tag = append(tag, "write")
		case !u.Writes:
			tag = append(tag, "read")
		}
		relays.Tags = append(relays.Tags, tag)
		if u.Reads {
			inbox.Tags = append(inbox.Tags, nostr.Tag{"relay", u.URL})
		}
	}
	if len(inbox.Tags) == 0 {
		return []nostr.Event{relays}
	}
	return []nostr.Event{relays, inbox}
}

// publish returns when every relay that is connected has the list or has refused it permanently, or
// when it has been asked often enough.
func (c ListsConfig) publish(ctx context.Context, list *nostr.Event) {
	if err := c.Signer.Sign(list); err != nil {
		c.Report("RelayListRefused", map[string]any{"kind": list.Kind, "reason": err.Error()})
		return
	}
	for n := range listTries {
		results, err := c.Relays.Publish(ctx, list)
		open := err != nil
		for _, r := range results {
			switch published, refused := pool.Verdict([]pool.Result{r}); {
			case refused:
				c.Report("RelayListRefused", map[string]any{"kind": list.Kind, "relay": r.URL, "reason": r.Reason})
			case !published:
				open = true
			}
		}
		if !open || !pause(ctx, n) {
			return
		}
	}
}
