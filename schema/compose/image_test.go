package compose_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The image is built from image/oci.json and contains examples/minimal.toml. The ports that
// oci.json exposes must be those on which the box of that manifest listens. The variables of
// oci.json must agree with the catalogue.
func TestTheImageAgreesWithItsManifest(t *testing.T) {
	var oci struct {
		Env          []string
		ExposedPorts map[string]struct{}
	}
	text, err := os.ReadFile("../../image/oci.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &oci); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("../../examples/minimal.toml")
	if err != nil {
		t.Fatal(err)
	}
	image, err := load(t, string(manifest)).Image()
	if err != nil {
		t.Fatal(err)
	}
	var want struct{ ExposedPorts map[string]struct{} }
	if err := json.Unmarshal(image, &want); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(oci.ExposedPorts) != fmt.Sprint(want.ExposedPorts) {
		t.Errorf("image/oci.json exposes %v, its manifest %v", oci.ExposedPorts, want.ExposedPorts)
	}
	agentbox := load(t, "[core]").Environment
	for _, e := range oci.Env {
		name, value, _ := strings.Cut(e, "=")
		if said, ok := agentbox[name]; ok && said != value {
			t.Errorf("image/oci.json says %s, the catalogue %q", e, said)
		}
	}
}
