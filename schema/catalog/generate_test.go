package catalog

import (
	"bytes"
	"flag"
	"fmt"
	gofmt "go/format"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

var update = flag.Bool("update", false, "write the generated file")

// TestGeneratedIsCurrent checks that the generated code matches catalog.toml.
func TestGeneratedIsCurrent(t *testing.T) {
	const path = "catalog_gen.go"
	text, err := os.ReadFile("catalog.toml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	source, err := render(want)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, source, 0o644); err != nil {
			t.Fatal(err)
		}
		return // this process still has the old code
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, source) {
		t.Errorf("%s is not current; run: make generate", path)
	}
	if !reflect.DeepEqual(Load(), want) {
		t.Error("what the code makes is not what catalog.toml says")
	}
}

func parse(text []byte) (*Catalogue, error) {
	c := new(Catalogue)
	return c, toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(c)
}

func render(c *Catalogue) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("// Code generated from catalog.toml by make generate; DO NOT EDIT.\n\npackage catalog\n\nfunc generated() *Catalogue {\nreturn ")
	literal(&b, reflect.ValueOf(c))
	b.WriteString("\n}\n")
	return gofmt.Source(b.Bytes())
}

// literal writes v as a Go expression.
func literal(b *bytes.Buffer, v reflect.Value) {
	name := strings.ReplaceAll(v.Type().String(), "catalog.", "")
	switch v.Kind() {
	case reflect.Interface:
		literal(b, v.Elem())
	case reflect.Pointer:
		if v.Elem().Kind() != reflect.Struct {
			b.WriteString("new(")
			literal(b, v.Elem())
			b.WriteString(")")
			return
		}
		b.WriteByte('&')
		literal(b, v.Elem())
	case reflect.Struct:
		b.WriteString(name + "{")
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				b.WriteString("\n" + v.Type().Field(i).Name + ": ")
				literal(b, f)
				b.WriteByte(',')
			}
		}
		b.WriteString("\n}")
	case reflect.Slice:
		b.WriteString(name + "{")
		for i := range v.Len() {
			literal(b, v.Index(i))
			b.WriteString(", ")
		}
		b.WriteByte('}')
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		b.WriteString(name + "{")
		for _, k := range keys {
			fmt.Fprintf(b, "\n%q: ", k.String())
			literal(b, v.MapIndex(k))
			b.WriteByte(',')
		}
		b.WriteString("\n}")
	case reflect.String:
		fmt.Fprintf(b, "%q", v.String())
	case reflect.Bool:
		fmt.Fprint(b, v.Bool())
	case reflect.Int64:
		fmt.Fprintf(b, "int64(%d)", v.Int()) // the target type may be any, so the type must be explicit
	case reflect.Int:
		fmt.Fprint(b, v.Int())
	default:
		panic("the catalogue holds a " + name + ", which literal does not know")
	}
}
