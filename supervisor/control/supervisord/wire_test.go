package supervisord

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

// wrap makes a call of the text of one <value>.
func wrap(value string) string {
	return "<methodCall><methodName>m</methodName><params><param><value>" + value + "</value></param></params></methodCall>"
}

func TestReadCall(t *testing.T) {
	for _, test := range []struct {
		name, document string
		want           call
	}{
		{"as Python writes it", `<?xml version='1.0'?>
<methodCall>
<methodName>supervisor.startProcess</methodName>
<params>
<param>
<value><string>web</string></value>
</param>
<param>
<value><boolean>0</boolean></value>
</param>
</params>
</methodCall>
`, call{"supervisor.startProcess", []any{"web", false}}},
		{"without params", "<methodCall><methodName>m</methodName></methodCall>", call{"m", nil}},
		{"empty params", "<methodCall><methodName> m </methodName><params/></methodCall>", call{"m", nil}},
		{"a text without a type", wrap(" a b "), call{"m", []any{" a b "}}},
		{"an empty value", wrap(""), call{"m", []any{""}}},
		{"a string keeps its spaces", wrap("<string> a &amp; b </string>"), call{"m", []any{" a & b "}}},
		{"numbers", wrap("<array><data><value><int>-7</int></value><value><i4>8</i4></value><value><double>1.5</double></value></data></array>"),
			call{"m", []any{[]any{-7, 8, 1.5}}}},
		{"an empty array", wrap("<array><data/></array>"), call{"m", []any{[]any{}}}},
		{"a struct", wrap("<struct><member><name>methodName</name><value>x</value></member><member><name>params</name><value><array><data/></array></value></member></struct>"),
			call{"m", []any{map[string]any{"methodName": "x", "params": []any{}}}}},
		{"bytes and nil", wrap("<array><data><value><base64>aGk=</base64></value><value><nil/></value></data></array>"),
			call{"m", []any{[]any{[]byte("hi"), nil}}}},
		{"as PHP writes it", `<?xml version="1.0" encoding="iso-8859-1"?><methodCall><methodName>m</methodName><params><param><value><string>&#233;</string></value></param></params></methodCall>`,
			call{"m", []any{"é"}}},
		{"comments and instructions", "<!-- a --><methodCall><?x?><methodName>m</methodName><!-- b --></methodCall>", call{"m", nil}},
	} {
		got, err := readCall(strings.NewReader(test.document))
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
	}
}

func TestReadCallRefuses(t *testing.T) {
	for _, test := range []struct{ document, want string }{
		{"", "no <methodName>"},
		{"{}", "text is not expected"},
		{"<methodCall>", "unexpected EOF"},
		{"<methodResponse/>", "not a <methodCall>"},
		{"<methodCall/>", "no <methodName>"},
		{"<methodCall><methodName>m</methodName><x/></methodCall>", "<x> is not expected"},
		{"<methodCall><methodName>m<b/></methodName></methodCall>", "<b> is not expected in <methodName>"},
		{"<methodCall><methodName>m</methodName><params><value/></params></methodCall>", "<value> is not expected"},
		{`<?xml version="1.0" encoding="iso-8859-1"?>` + wrap("\xe9"), "invalid UTF-8"},
		{"<!DOCTYPE x [<!ENTITY a 'b'>]>" + wrap("&a;"), "invalid character entity"},
		{wrap("<int>1e3</int>"), `"1e3" is no <int>`},
		{wrap("<int>99999999999999999999</int>"), "is no <int>"},
		{wrap("<boolean>yes</boolean>"), `"yes" is no <boolean>`},
		{wrap("<double>a</double>"), `"a" is no <double>`},
		{wrap("<base64>?</base64>"), "cannot be decoded"},
		{wrap("<string>a</string>b"), "a type and a text"},
		{wrap("<int>1</int><int>2</int>"), "more than one type"},
		{wrap("<array><value/></array>"), "<value> is not expected"},
		{wrap("<struct><member><name>a</name></member></struct>"), `the member "a" has 0 values`},
		{wrap("<foo/>"), "<foo> is no type"},
		{wrap(strings.Repeat("<array><data><value>", 1000) + strings.Repeat("</value></data></array>", 1000)), "nested more than 16 deep"},
	} {
		if c, err := readCall(strings.NewReader(test.document)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.80s: %+v, %v", test.document, c, err)
		}
	}
}

func TestResponse(t *testing.T) {
	got := string(response(map[string]any{"b": []any{1 << 40, -1 << 40, true, false}, "a": "x<\x1b[2J\xff"}))
	want := "<?xml version='1.0'?>\n<methodResponse>\n<params>\n<param>\n<value><struct>\n" +
		"<member>\n<name>a</name>\n<value><string>x&lt;\uFFFD[2J\uFFFD</string></value>\n</member>\n" +
		"<member>\n<name>b</name>\n<value><array><data>\n<value><int>2147483647</int></value>\n<value><int>-2147483648</int></value>\n" +
		"<value><boolean>1</boolean></value>\n<value><boolean>0</boolean></value>\n</data></array></value>\n</member>\n" +
		"</struct></value>\n</param>\n</params>\n</methodResponse>\n"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// FuzzReadCall: whatever a peer sends, reading ends, and what was read can be written as XML.
func FuzzReadCall(f *testing.F) {
	f.Add(wrap("<struct><member><name>a</name><value><array><data><value><i4>1</i4></value></data></array></value></member></struct>"))
	f.Add(wrap("text") + "<")
	f.Add("<methodCall><methodName>m</methodName><params>")
	f.Fuzz(func(t *testing.T, document string) {
		c, err := readCall(strings.NewReader(document))
		if err != nil {
			return
		}
		out := string(response([]any{c.method, writable(c.params)}))
		for d := xml.NewDecoder(strings.NewReader(out)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %q", err, out)
			}
		}
		if again := string(response([]any{c.method, writable(c.params)})); again != out {
			t.Fatalf("%q and then %q", out, again)
		}
	})
}

// writable leaves out what no method returns.
func writable(v any) any {
	switch v := v.(type) {
	case []any:
		out := []any{}
		for _, item := range v {
			out = append(out, writable(item))
		}
		return out
	case map[string]any:
		out := make(map[string]any)
		for name, item := range v {
			out[name] = writable(item)
		}
		return out
	case string, int, bool:
		return v
	}
	return ""
}

// A value that is written ahead is the same as one that is written in its place.
func TestEncoded(t *testing.T) {
	v := []any{"a", map[string]any{"b": 1}}
	if !bytes.Equal(response(v), response(encode(v))) {
		t.Errorf("%s", response(encode(v)))
	}
}
