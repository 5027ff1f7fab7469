package manifests_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The bill of materials of a release is valid by the JSON Schema of CycloneDX, and
// CycloneDX's own library reads it.
func TestBillOfMaterials(t *testing.T) {
	text := billOfMaterials(t)
	schema := cycloneDX(t)
	if err := validate(t, schema, text); err != nil {
		t.Error(err)
	}
	var b cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&b); err != nil || len(*b.Components) < 20 {
		t.Errorf("%v, %d components", err, len(*b.Components))
	}

	for _, change := range [][2]string{{`"id": "MIT"`, `"id": "Mit"`}, {`"alg": "SHA-256"`, `"alg": "SHA256"`}, {`"bom-ref"`, `"bomref"`}} {
		bad := bytes.ReplaceAll(text, []byte(change[0]), []byte(change[1]))
		if bytes.Equal(bad, text) || validate(t, schema, bad) == nil {
			t.Errorf("%s instead of %s is not noticed", change[1], change[0])
		}
	}
}

// billOfMaterials is that of a release of this machine's architecture.
func billOfMaterials(t *testing.T) []byte {
	t.Helper()
	dist, out := t.TempDir(), t.TempDir()
	gotool := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		answer, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, stderr.String())
		}
		return strings.TrimSpace(string(answer))
	}
	for _, name := range []string{"agentinit", "agentctl"} {
		gotool("build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dist, runtime.GOARCH, name), "./cmd/"+name)
	}
	gotool("run", "./release", "-o", out, "-version", "1.2.3", "-modcache", gotool("env", "GOMODCACHE"), dist, runtime.GOARCH)
	text, err := os.ReadFile(filepath.Join(out, "agentinit-1.2.3.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// cycloneDX is the schema that CycloneDX's library carries beside its sources.
func cycloneDX(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	const base = "http://cyclonedx.org/schema/"
	c := jsonschema.NewCompiler()
	for name, file := range map[string]string{
		"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource(base+name, document(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile(base + "bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func document(t *testing.T, text []byte) any {
	t.Helper()
	d, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func validate(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	return schema.Validate(document(t, text))
}
