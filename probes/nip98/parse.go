package nip98

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nbd-wtf/go-nostr"
)

// Bounds of a token.
const (
	maxToken = 8 << 10 // bytes of the header's value
	maxTags  = 32
	maxItems = 16 // of one tag
)

// parse reads the value of the header: the scheme, base64 with or without
// padding, one JSON object of exactly the members of NIP-01.
func parse(authorization string) (*nostr.Event, error) {
	if len(authorization) > maxToken {
		return nil, refuse(ReasonMalformed, "the token is longer than 8 KiB")
	}
	scheme, text, found := strings.Cut(authorization, " ")
	if !found || !strings.EqualFold(scheme, "Nostr") {
		return nil, refuse(ReasonMalformed, `the scheme is not "Nostr"`)
	}
	raw, err := base64.RawStdEncoding.Strict().DecodeString(unpadded(strings.Trim(text, " ")))
	if err != nil {
		return nil, refuse(ReasonMalformed, "the token is not standard base64")
	}
	if !utf8.Valid(raw) {
		return nil, refuse(ReasonMalformed, "the event is not UTF-8")
	}
	e, err := decode(raw)
	if err != nil {
		return nil, refuse(ReasonMalformed, "the event is not one JSON object of NIP-01: "+err.Error())
	}
	return e, nil
}

// unpadded drops the padding where it is right: at most two marks that fill the
// last group of four.
func unpadded(text string) string {
	bare := strings.TrimRight(text, "=")
	if n := len(text) - len(bare); n > 2 || n > 0 && len(text)%4 != 0 {
		return text // the decoder refuses the marks
	}
	return bare
}

var errShape = errors.New("a member has the wrong type, is unknown, missing or there twice")

// decode is stricter than json.Unmarshal, which takes members twice, in any case
// of letters, and ignores what it does not know: two readers of such an object
// may see two events.
func decode(raw []byte) (*nostr.Event, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := expect(d, json.Delim('{')); err != nil {
		return nil, err
	}
	e := &nostr.Event{}
	members := map[string]func() error{
		"id": text(d, &e.ID), "pubkey": text(d, &e.PubKey), "sig": text(d, &e.Sig), "content": text(d, &e.Content),
		"kind": func() error {
			n, err := integer(d)
			e.Kind = int(n)
			return err
		},
		"created_at": func() error {
			n, err := integer(d)
			e.CreatedAt = nostr.Timestamp(n)
			return err
		},
		"tags": func() (err error) {
			e.Tags, err = tags(d)
			return err
		},
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, errShape
		}
		key, _ := name.(string)
		read, known := members[key]
		if !known {
			return nil, errShape
		}
		if err := read(); err != nil {
			return nil, err
		}
		delete(members, key) // a second time it is unknown
	}
	if err := expect(d, json.Delim('}')); err != nil || len(members) > 0 {
		return nil, errShape
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the object")
	}
	return e, nil
}

func expect(d *json.Decoder, want json.Token) error {
	if got, err := d.Token(); err != nil || got != want {
		return errShape
	}
	return nil
}

func text(d *json.Decoder, into *string) func() error {
	return func() error {
		t, err := d.Token()
		s, ok := t.(string)
		if err != nil || !ok {
			return errShape
		}
		*into = s
		return nil
	}
}

// integer takes digits alone: 1e3 and 1.0 are other spellings of integers.
func integer(d *json.Decoder) (int64, error) {
	t, err := d.Token()
	number, ok := t.(json.Number)
	if err != nil || !ok {
		return 0, errShape
	}
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || n < 0 || n > 1<<53 {
		return 0, errShape
	}
	return n, nil
}

func tags(d *json.Decoder) (nostr.Tags, error) {
	if err := expect(d, json.Delim('[')); err != nil {
		return nil, err
	}
	out := nostr.Tags{}
	for d.More() {
		if len(out) == maxTags {
			return nil, errors.New("more than 32 tags")
		}
		if err := expect(d, json.Delim('[')); err != nil {
			return nil, err
		}
		tag := nostr.Tag{}
		for d.More() {
			var item string
			if err := text(d, &item)(); err != nil {
				return nil, err
			}
			if tag = append(tag, item); len(tag) > maxItems {
				return nil, errors.New("a tag of more than 16 items")
			}
		}
		if err := expect(d, json.Delim(']')); err != nil {
			return nil, err
		}
		out = append(out, tag)
	}
	return out, expect(d, json.Delim(']'))
}
