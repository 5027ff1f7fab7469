package main

import (
	"os"
	"testing"
)

// The Nix build reads the catalogue as JSON from a committed file.
func TestTheCatalogueOfTheNixBuildIsCurrent(t *testing.T) {
	const path = "../../nix/catalogue.json"
	want, stderr, code := agentctl(t, "config", "catalogue")
	if code != exitOK {
		t.Fatalf("%d: %s", code, stderr)
	}
	if os.Getenv("UPDATE_SCRIPTS") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != want {
		t.Errorf("%s is not what `agentctl config catalogue` prints (%v); run: make generate", path, err)
	}
}
