package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
)

// document is the text that is written, about a kilobyte.
var document = fmt.Sprintf(`{"@context":"https://schema.org/","@id":"#it","name":"measured","text":%q}`, strings.Repeat("word ", 180))

const n3Patch = `@prefix solid: <http://www.w3.org/ns/solid/terms#>.
<#patch> a solid:InsertDeletePatch; solid:inserts { <#it> <http://schema.org/keyword> "k%d". }.`

// podsLocal measures the class together with the pod server of a box, which the box itself starts.
func (l *lab) podsLocal() target {
	return solidTarget("local-solid-rs, the pod server of a box", func(ctx context.Context) (*pods.Solid, error) {
		port, err := foreign.FreePort()
		if err != nil {
			return nil, err
		}
		b, err := l.box(ctx, "/ready", fmt.Sprintf(`[adapters]
pods = "local-solid-rs"
[integrations.solid_pod_rs]
port = %d
[sovereign_mesh]
enabled = true
[security.exceptions.solid-pod-rs]
reason = "measured"
`, port))
		if err != nil {
			return nil, err
		}
		key, err := l.identity(ctx, b)
		if err != nil {
			return nil, err
		}
		return pods.NewLocal(pods.Config{BaseURL: fmt.Sprintf("http://127.0.0.1:%d", port), Auth: signature{key}, Listener: "127.0.0.1"})
	})
}

// signature authorises requests as agentinit does for this class: by the key of the box (NIP-98). The rows have only bodies that the
// client holds in memory.
type signature struct{ key *identity.Key }

func (s signature) Authorize(r *http.Request, body []byte) error {
	header, err := nip98.Authorization(s.key, r.Method, r.URL.String(), body, time.Now(), nip98.Headers(r.Header))
	if err == nil {
		r.Header.Set("Authorization", header)
	}
	return err
}

func (l *lab) podsExternal() target {
	return solidTarget("external, Community Solid Server on files", func(ctx context.Context) (*pods.Solid, error) {
		url, err := l.keep(foreign.Solid(ctx, nil))
		if err != nil {
			return nil, err
		}
		return pods.NewExternal(pods.Config{BaseURL: url})
	})
}

func solidTarget(class string, build func(context.Context) (*pods.Solid, error)) target {
	const write, read = 300 * time.Millisecond, 150 * time.Millisecond
	var p adapters.Pods
	put := func(ctx context.Context, path, kind, text string) error {
		_, err := p.Write(ctx, path, adapters.Body{ContentType: kind, Reader: strings.NewReader(text), Size: int64(len(text))}, adapters.Cond{})
		return err
	}
	made := func(prefix, kind, text string) func(context.Context, int) (string, error) {
		return func(ctx context.Context, i int) (string, error) {
			// At most a hundred documents a container: the cost of a write must not include the
			// cost of a long list of members.
			path := fmt.Sprintf("/%s%d/%d", prefix, i/100, i)
			return path, put(ctx, path, kind, text)
		}
	}
	patch := func(dialect string, body func() string) func(context.Context, string) error {
		return func(ctx context.Context, path string) error {
			_, err := p.Patch(ctx, path, adapters.PodPatch{Dialect: dialect, Body: []byte(body())}, adapters.Cond{})
			return err
		}
	}
	get := func(ctx context.Context, path string) error {
		r, err := p.Read(ctx, path, adapters.ReadOpt{})
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r.Body)
		if closeErr := r.Body.Close(); err == nil {
			err = closeErr
		}
		return err
	}
	return target{
		slot: "pods", class: class, close: func() { disconnect(p) },
		open: func(ctx context.Context) error {
			solid, err := build(ctx)
			if err != nil {
				return err
			}
			p = adapters.WrapPods(solid, nil)
			return p.Connect(ctx)
		},
		rows: []row{
			{"write", write, 20, 0.01, at(func(ctx context.Context, i int) error {
				return put(ctx, fmt.Sprintf("/w%d/%d", i/100, i), "application/ld+json", document)
			})},
			{"patch, JSON Patch", write, 20, 0.01, after(made("j", "application/json", `{"a":1}`),
				patch(adapters.DialectJSONPatch, func() string { return `[{"op":"add","path":"/b","value":2}]` }))},
			{"patch, N3", write, 20, 0.01, after(made("n", "text/turtle", "<#it> <http://schema.org/name> \"measured\"."),
				patch(adapters.DialectN3, func() string { return fmt.Sprintf(n3Patch, time.Now().UnixNano()) }))},
			{"read", read, 100, 0.005, func(ctx context.Context, rate, seconds int) (sample, error) {
				path, err := made("r", "application/ld+json", document)(ctx, 0)
				if err != nil {
					return sample{}, err
				}
				return at(func(ctx context.Context, _ int) error { return get(ctx, path) })(ctx, rate, seconds)
			}},
			{"notification of a write", 200 * time.Millisecond, 0, 0.01, func(ctx context.Context, _, seconds int) (sample, error) {
				return notifications(ctx, p, seconds, put)
			}},
		},
	}
}

// notifications measures them one by one, from the end of a write to its notification. If a
// notification arrives before the answer to the write, its time is 0.
func notifications(ctx context.Context, p adapters.Pods, seconds int, put func(ctx context.Context, path, kind, text string) error) (sample, error) {
	const path, kind = "/notified/it", "text/plain"
	if err := put(ctx, path, kind, "begin"); err != nil {
		return sample{}, err
	}
	sub, err := p.Subscribe(ctx, path)
	if err != nil {
		return sample{}, err
	}
	defer sub.Close()
	came := make(chan error, 1)
	var at time.Time
	var s sample
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		one, cancel := context.WithTimeout(ctx, callLimit)
		go func() {
			_, err := sub.Next(one)
			at = time.Now()
			came <- err
		}()
		writeErr := put(one, path, kind, fmt.Sprint(len(s.took)))
		written := time.Now()
		err := <-came
		cancel()
		if writeErr != nil {
			return s, writeErr
		}
		s.took = append(s.took, max(at.Sub(written), 0))
		if err != nil {
			return s, err
		}
	}
	return s, nil
}
