package main

import (
	"slices"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
)

func TestPasswordsInAddresses(t *testing.T) {
	for address, want := range map[string][]string{
		"postgres://app:pw-77e1c0d9@db/app":     {"pw-77e1c0d9"},
		"redis://:pw-77e1c0d9@db":               {"pw-77e1c0d9"},
		"postgres://app:pw%40e1c0d9@db/app":     {"pw%40e1c0d9", "pw@e1c0d9"},
		"postgres://app:50%-off-all@db/app":     {"50%-off-all"}, // net/url refuses these three
		"mysql://app:pw 77e1c0d9@db/app":        {"pw 77e1c0d9"},
		"mongodb://app:pw-77@e1c0d9@a:1,b:x/db": {"pw-77@e1c0d9"},
		"jdbc:mysql://app:pw-77e1c0d9@db/app":   {"pw-77e1c0d9"},
		"postgres://postgres:postgres@db/app":   nil,
		"https://example.org:8080/users/@me":    nil,
		"https://app@example.org:8080/":         nil,
		"app:pw-77e1c0d9@example.org":           nil,
		"://":                                   nil,
	} {
		if got := passwordsOf(address); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

func TestThePasswordOfACollectorIsMasked(t *testing.T) {
	b := forwardingBox(t)
	m := &schema.Manifest{}
	m.Supervisor.Log.Forward = map[string]schema.LogForward{"all": {Type: "http", URL: "http://app:pw-77e1c0d9@127.0.0.1:1"}}
	if _, err := b.forward(m); err != nil {
		t.Fatal(err)
	}
	if got := b.plane.Mask("app:pw-77e1c0d9"); got != "app:***********" {
		t.Errorf("got %q", got)
	}
}
