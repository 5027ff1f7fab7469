package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Environment variables with credentials for --url.
const (
	envNsec = "NOSTR_NSEC"
	envKey  = "MANAGEMENT_API_KEY"
)

// maxKeyFile limits the size of a file with an nsec.
const maxKeyFile = 4096

// adapters sends a request to the slots or to other routes of the management listener: over the
// control socket or, with --url, to the listener itself.
func (c *cli) adapters(ctx context.Context, r api.AdapterRequest) (*http.Response, error) {
	for _, name := range strings.Split(r.Path, "/")[1:] {
		switch {
		case name == "" && strings.HasPrefix(r.Path, "/v1/"):
			return nil, usageError("an id, a key or a namespace is empty")
		case name == "." || name == "..": // a server answers with the address of another path
			return nil, usageError("a path must not have %q in it", name)
		}
	}
	if c.url == "" {
		if c.nostr != "" {
			return nil, usageError("--nostr signs requests to --url; the control socket takes no signature")
		}
		return c.client().Adapters(ctx, r)
	}
	req, err := c.remoteRequest(ctx, r)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	answer, err := api.Answered(resp)
	if refused, ok := errors.AsType[*api.Error](err); ok && resp.StatusCode == http.StatusUnauthorized && req.Header.Get("Authorization") == "" {
		refused.Hint = "put the management key into the variable " + envKey + ", or sign with --nostr"
	}
	return answer, err
}

// remoteRequest is the request to --url, with its credential.
func (c *cli) remoteRequest(ctx context.Context, r api.AdapterRequest) (*http.Request, error) {
	// A signature covers the whole body. Without one, the body is sent as it is read.
	var signed []byte
	if c.nostr != "" && r.Body != nil {
		var err error
		if signed, err = io.ReadAll(io.LimitReader(r.Body, maxInput+1)); err != nil {
			return nil, err
		}
		if len(signed) > maxInput {
			return nil, fmt.Errorf("a request of more than %d bytes cannot be signed; use the management key (%s) or the control socket", maxInput, envKey)
		}
		r.Body = bytes.NewReader(signed)
	}
	if u, err := url.Parse(c.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usageError("--url %q is not an address; write it as in http://127.0.0.1:9090", c.url)
	}
	target := c.base() + r.Path
	if query := r.Query.Encode(); query != "" {
		target += "?" + query
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target, r.Body)
	if err != nil {
		return nil, usageError("--url %q is not a valid address: %v", c.url, err)
	}
	maps.Copy(req.Header, r.Header)
	return req, c.authorize(req, signed)
}

// base is --url without the slash at its end.
func (c *cli) base() string { return strings.TrimSuffix(c.url, "/") }

// send gives up if the box does not answer other requests either, however long this one may take.
func (c *cli) send(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	client := http.Client{Transport: c.transport, CheckRedirect: outbound.NoRedirect}
	waiting, cut := context.WithCancel(ctx) // it ends with ctx: the caller reads the answer after this function
	watched := api.Watch(ctx, func(ctx context.Context) error { return alive(ctx, &client, c.base()) }, cut)
	resp, err := client.Do(req.WithContext(waiting))
	if silent := watched(); silent != nil {
		if err == nil {
			resp.Body.Close()
		}
		err = silent
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &exitError{exitUnreachable, fmt.Errorf("cannot reach the box at %s: %w", c.url, err)}
	}
	return resp, nil
}

// alive returns nil if the listener answers, whatever it says.
func alive(ctx context.Context, client *http.Client, base string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/livez", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// authorize signs the request, or adds the management key from the environment.
func (c *cli) authorize(req *http.Request, body []byte) error {
	if c.nostr == "" {
		if key, ok := c.lookupEnv(envKey); ok && key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		return nil
	}
	key, err := c.signingKey()
	if err != nil {
		return err
	}
	header, err := nip98.Authorization(key, req.Method, req.URL.String(), body, time.Now())
	if err != nil {
		return &exitError{exitUsage, err}
	}
	req.Header.Set("Authorization", header)
	return nil
}

// signingKey reads the nsec. An error never quotes it.
func (c *cli) signingKey() (*identity.Key, error) {
	from, text := envNsec, ""
	if c.nostr == "-" {
		text, _ = c.lookupEnv(envNsec)
	} else {
		raw, err := readAtMost(c.nostr, maxKeyFile)
		if err != nil {
			return nil, &exitError{exitFailure, fmt.Errorf("cannot read the key in %s: %w", c.nostr, err)}
		}
		from, text = c.nostr, string(raw)
	}
	key, err := identity.ParseKey(strings.TrimSpace(text))
	if err != nil {
		return nil, usageError("%s holds no nsec: %v", from, err)
	}
	return key, nil
}
