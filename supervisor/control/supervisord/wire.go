package supervisord

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// This file is the wire format of XML-RPC (http://xmlrpc.com/spec.md). A value is a string, int,
// bool, float64, []byte, []any or map[string]any. The extension <nil/> is read as nil.

// call is one request of a client.
type call struct {
	method string
	params []any
}

// maxDepth is how deep values may be nested. A system.multicall needs 8.
const maxDepth = 16

// readCall reads a methodCall document. The caller bounds its length.
func readCall(r io.Reader) (call, error) {
	d := &decoder{Decoder: xml.NewDecoder(r)}
	// As in supervisord, a document is UTF-8 whatever it says. PHP says iso-8859-1 and writes ASCII.
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	var c call
	err := d.inside("", func(name string) error {
		if name != "methodCall" {
			return fmt.Errorf("the document is a <%s>, not a <methodCall>", name)
		}
		return d.inside(name, func(name string) (err error) {
			switch name {
			case "methodName":
				c.method, err = d.text(name)
				c.method = strings.TrimSpace(c.method)
				return err
			case "params":
				return d.inside(name, func(name string) error {
					if name != "param" {
						return unexpected(name)
					}
					return d.inside(name, d.valueInto(&c.params, 0))
				})
			}
			return unexpected(name)
		})
	})
	if err == nil && c.method == "" {
		err = errors.New("it has no <methodName>")
	}
	return c, err
}

func unexpected(name string) error { return fmt.Errorf("<%s> is not expected there", name) }

type decoder struct{ *xml.Decoder }

// inside calls element for each start tag up to the end of the surrounding element, or of the
// document if its name is "". element must read its element to the end.
func (d *decoder) inside(surrounding string, element func(name string) error) error {
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && surrounding == "" {
			return nil
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if err := element(t.Name.Local); err != nil {
				return err
			}
		case xml.EndElement:
			return nil
		case xml.CharData:
			if len(bytes.TrimSpace(t)) > 0 {
				return fmt.Errorf("text is not expected in <%s>", surrounding)
			}
		}
	}
}

// text reads the text of an element to its end.
func (d *decoder) text(surrounding string) (string, error) {
	var text strings.Builder
	for {
		token, err := d.Token()
		if err != nil {
			return "", err
		}
		switch t := token.(type) {
		case xml.CharData:
			text.Write(t)
		case xml.EndElement:
			return text.String(), nil
		case xml.StartElement:
			return "", fmt.Errorf("<%s> is not expected in <%s>", t.Name.Local, surrounding)
		}
	}
}

// valueInto returns a function for inside that appends <value> elements to list.
func (d *decoder) valueInto(list *[]any, depth int) func(string) error {
	return func(name string) error {
		if name != "value" {
			return unexpected(name)
		}
		v, err := d.value(depth)
		*list = append(*list, v)
		return err
	}
}

// value reads the rest of a <value>: one typed element, or a text, which is a string.
func (d *decoder) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	var text strings.Builder
	var typed any
	types := 0
	for {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.CharData:
			text.Write(t)
		case xml.StartElement:
			if types++; types > 1 {
				return nil, errors.New("a <value> has more than one type")
			}
			if typed, err = d.typed(t.Name.Local, depth); err != nil {
				return nil, err
			}
		case xml.EndElement:
			if types == 0 {
				return text.String(), nil
			}
			if strings.TrimSpace(text.String()) != "" {
				return nil, errors.New("a <value> has a type and a text beside it")
			}
			return typed, nil
		}
	}
}

func (d *decoder) typed(name string, depth int) (any, error) {
	switch name {
	case "array":
		list := []any{}
		return list, d.inside(name, func(name string) error {
			if name != "data" {
				return unexpected(name)
			}
			return d.inside(name, d.valueInto(&list, depth+1))
		})
	case "struct":
		return d.members(depth)
	}
	text, err := d.text(name)
	if err != nil {
		return nil, err
	}
	if name != "string" {
		text = strings.TrimSpace(text)
	}
	return scalar(name, text)
}

func (d *decoder) members(depth int) (any, error) {
	out := make(map[string]any)
	return out, d.inside("struct", func(name string) error {
		if name != "member" {
			return unexpected(name)
		}
		var key string
		var values []any
		if err := d.inside(name, func(name string) (err error) {
			if name == "name" {
				key, err = d.text(name)
				return err
			}
			return d.valueInto(&values, depth+1)(name)
		}); err != nil {
			return err
		}
		if len(values) != 1 {
			return fmt.Errorf("the member %.40q has %d values", key, len(values))
		}
		out[key] = values[0]
		return nil
	})
}

func scalar(name, text string) (any, error) {
	switch name {
	case "string", "dateTime.iso8601":
		return text, nil
	case "int", "i4", "i8":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.40q is no <%s>", text, name)
		}
		return int(n), nil
	case "boolean":
		if text != "0" && text != "1" {
			return nil, fmt.Errorf("%.40q is no <boolean>", text)
		}
		return text == "1", nil
	case "double":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%.40q is no <double>", text)
		}
		return n, nil
	case "base64":
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errors.New("a <base64> cannot be decoded")
		}
		return data, nil
	case "nil":
		return nil, nil
	}
	return nil, fmt.Errorf("<%.40s> is no type of XML-RPC", name)
}

const prolog = "<?xml version='1.0'?>\n<methodResponse>\n"

// response is the document that answers a call with a value.
func response(v any) []byte {
	out := bytes.NewBufferString(prolog + "<params>\n<param>\n")
	writeValue(out, v)
	out.WriteString("</param>\n</params>\n</methodResponse>\n")
	return out.Bytes()
}

// response is the document that answers a call with a fault.
func (f *fault) response() []byte {
	out := bytes.NewBufferString(prolog + "<fault>\n")
	writeValue(out, f.value())
	out.WriteString("</fault>\n</methodResponse>\n")
	return out.Bytes()
}

func (f *fault) value() map[string]any {
	return map[string]any{"faultCode": f.code, "faultString": f.text}
}

// encoded is a value that is written already.
type encoded []byte

func encode(v any) encoded {
	var out bytes.Buffer
	writeValue(&out, v)
	return out.Bytes()
}

// writeValue writes a value. Characters that XML does not have become U+FFFD. Whole numbers are cut to
// 32 bits, the range of XML-RPC.
func writeValue(out *bytes.Buffer, v any) {
	if ready, ok := v.(encoded); ok {
		out.Write(ready)
		return
	}
	out.WriteString("<value>")
	switch v := v.(type) {
	case string:
		out.WriteString("<string>")
		writeText(out, v)
		out.WriteString("</string>")
	case int:
		fmt.Fprintf(out, "<int>%d</int>", min(max(v, math.MinInt32), math.MaxInt32))
	case bool:
		digit := 0
		if v {
			digit = 1
		}
		fmt.Fprintf(out, "<boolean>%d</boolean>", digit)
	case []any:
		out.WriteString("<array><data>\n")
		for _, item := range v {
			writeValue(out, item)
		}
		out.WriteString("</data></array>")
	case map[string]any:
		out.WriteString("<struct>\n")
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out.WriteString("<member>\n<name>")
			writeText(out, name)
			out.WriteString("</name>\n")
			writeValue(out, v[name])
			out.WriteString("</member>\n")
		}
		out.WriteString("</struct>")
	default:
		panic(fmt.Sprintf("no method returns a %T", v))
	}
	out.WriteString("</value>\n")
}

func writeText(out *bytes.Buffer, text string) {
	_ = xml.EscapeText(out, []byte(text)) // a bytes.Buffer takes everything
}
