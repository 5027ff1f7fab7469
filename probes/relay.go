package probes

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// relayTimeout bounds one websocket connect.
const relayTimeout = 3 * time.Second

// relayID is the id of the requirement that at least one relay answers.
const relayID = "relay:any"

// RelayDial completes a websocket connect to url and closes it again. Its error names the relay, but
// without a password or a token in the url.
type RelayDial func(ctx context.Context, url string) error

// FollowRelays keeps the relay requirement up to date until ctx ends. It is met while at least one
// of urls completes a connect within relayTimeout. Like FollowMounts, it must start before the
// seal.
func (r *Readiness) FollowRelays(ctx context.Context, urls []string, dial RelayDial) {
	r.Set(Requirement{ID: relayID, Kind: KindRelay, Reason: notChecked})
	if len(urls) == 0 {
		r.Set(Requirement{ID: relayID, Kind: KindRelay, Reason: "no relay is configured (NOSTR_RELAYS is empty)"})
		return
	}
	last := ""
	r.every(ctx, func() time.Duration {
		url, err := anyRelay(ctx, urls, last, dial)
		if ctx.Err() != nil {
			return checkCycle
		}
		last = url
		q := Requirement{ID: relayID, Kind: KindRelay, Met: err == nil}
		if err != nil {
			q.Reason = err.Error()
		}
		r.Set(q)
		return checkCycle
	})
}

// anyRelay first tries only the relay that answered last. If that fails, it tries all at once, that one
// too. So a healthy box makes one connection for each check.
func anyRelay(ctx context.Context, urls []string, last string, dial RelayDial) (string, error) {
	if last != "" && dialOne(ctx, last, dial) == nil {
		return last, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		url string
		err error
	}
	answers := make(chan answer, len(urls))
	for _, url := range urls {
		go func() { answers <- answer{url, dialOne(ctx, url, dial)} }()
	}
	var errs []error
	for range urls {
		a := <-answers
		if a.err == nil {
			return a.url, nil
		}
		errs = append(errs, a.err)
	}
	return "", fmt.Errorf("no relay answered within %s: %w", relayTimeout, errors.Join(errs...))
}

func dialOne(ctx context.Context, url string, dial RelayDial) error {
	ctx, cancel := context.WithTimeoutCause(ctx, relayTimeout, errors.New("no answer in time"))
	defer cancel()
	return dial(ctx, url)
}
