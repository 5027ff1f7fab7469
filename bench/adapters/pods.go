package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// document is the text that is written, about a kilobyte.
var document = fmt.Sprintf(`{"@context":"https://schema.org/","@id":"#it","name":"measured","text":%q}`, strings.Repeat("word ", 180))

const n3Patch = `@prefix solid: <http://www.w3.org/ns/solid/terms#>.
<#patch> a solid:InsertDeletePatch; solid:inserts { <#it> <http://schema.org/keyword> "k%d". }.`

// solid measures both classes on one Community Solid Server, each class in its own tree. For
// local-solid-rs, this server replaces the pod server program that a box has at
// integrations.solid_pod_rs.base_url. The rows measure the class together with that server.
func (l *lab) solid() []target {
	var url string
	start := func(ctx context.Context) (err error) {
		if url == "" {
			url, err = l.keep(foreign.Solid(ctx, nil))
		}
		return err
	}
	of := func(class, tree string, build func(pods.Config) (*pods.Solid, error)) target {
		return solidTarget(class, func(ctx context.Context) (adapters.Pods, error) {
			if err := start(ctx); err != nil {
				return nil, err
			}
			return build(pods.Config{BaseURL: url + tree})
		})
	}
	return []target{
		of("local-solid-rs, Community Solid Server in the program's place", "/local/", pods.NewLocal),
		of("external, Community Solid Server on files", "/external/", pods.NewExternal),
	}
}

func solidTarget(class string, build func(context.Context) (adapters.Pods, error)) target {
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
			{"patch, JSON Patch by read and write", write, 20, 0.01, after(made("j", "application/json", `{"a":1}`),
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
