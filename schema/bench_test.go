package schema

import (
	"bytes"
	"fmt"
	"testing"
)

func BenchmarkLoadMinimal(b *testing.B) {
	text := []byte("[programs.web]\ncommand = [\"sleep\", \"1\"]\n")
	for b.Loop() {
		Load("a", text)
	}
}

func BenchmarkShape(b *testing.B) {
	for b.Loop() {
		newManifestShape()
	}
}

// BenchmarkLibrary is the reason why the validator interprets the shapes directly: compiling the
// JSON Schema at boot would take longer than the whole boot of a small box.
func BenchmarkLibrary(b *testing.B) {
	JSONSchema()
	for b.Loop() {
		compiled(b)
	}
}

func BenchmarkLoad1000Programs(b *testing.B) {
	var text bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&text, "[programs.p%d]\ncommand = [\"sleep\", \"1\"]\nrestart = \"always\"\n", i)
	}
	for b.Loop() {
		Load("a", text.Bytes())
	}
}
