package schema

import "testing"

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
