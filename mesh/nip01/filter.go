package nip01

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// maxFilterItems limits the values in all lists of one filter together.
const maxFilterItems = 2000

// Filter selects events: all its conditions must hold. An empty list that is not nil selects no
// event. The zero value selects every event.
type Filter struct {
	IDs, Authors []string // nil = any
	Kinds        []int
	Tags         map[string][]string // by the letter of the tag
	Since, Until *int64              // seconds, inclusive
	Limit        *int                // maximum number of stored events
}

// parseFilter reads one filter. It refuses unknown conditions: if they were ignored, the client
// would get more events than it asked for.
func parseFilter(raw []byte) (f Filter, err error) {
	fields, err := object(raw)
	if err != nil {
		return f, fmt.Errorf("the filter %w", err)
	}
	items := 0
	for name, raw := range fields {
		switch {
		case name == "ids":
			f.IDs, err = hexList(raw)
			items += len(f.IDs)
		case name == "authors":
			f.Authors, err = hexList(raw)
			items += len(f.Authors)
		case name == "kinds":
			f.Kinds, err = kindList(raw)
			items += len(f.Kinds)
		case name == "since":
			f.Since, err = moment(raw)
		case name == "until":
			f.Until, err = moment(raw)
		case name == "limit":
			var n int64
			n, err = integer(raw, maxCreatedAt)
			f.Limit = new(int(min(n, 1<<30)))
		case len(name) == 2 && name[0] == '#' && letter(name[1]):
			var values []string
			values, err = textList(raw)
			if f.Tags == nil {
				f.Tags = make(map[string][]string, 1)
			}
			f.Tags[name[1:]] = values
			items += len(values)
		default:
			return f, fmt.Errorf("the filter's %.40q is not supported", name)
		}
		if err != nil {
			return f, fmt.Errorf("the filter's %.40s %w", name, err)
		}
	}
	if items > maxFilterItems {
		return f, fmt.Errorf("the filter has more than %d values", maxFilterItems)
	}
	return f, nil
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func textList(raw json.RawMessage) ([]string, error) {
	var list []*string
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, errors.New("is no array of strings")
	}
	out := make([]string, len(list))
	for i, s := range list {
		if s == nil {
			return nil, errors.New("is no array of strings")
		}
		out[i] = *s
	}
	return out, nil
}

func hexList(raw json.RawMessage) ([]string, error) {
	list, err := textList(raw)
	if err == nil && slices.ContainsFunc(list, func(s string) bool { return !LowerHex(s, hexIDSize) }) {
		err = fmt.Errorf("has one that is not %d lower-case hexadecimal digits", hexIDSize)
	}
	return list, err
}

func kindList(raw json.RawMessage) ([]int, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, errors.New("is no array of numbers")
	}
	out := make([]int, len(list))
	for i, raw := range list {
		n, err := integer(raw, maxKind)
		if err != nil {
			return nil, fmt.Errorf("has one that %w", err)
		}
		out[i] = int(n)
	}
	return out, nil
}

func moment(raw json.RawMessage) (*int64, error) {
	n, err := integer(raw, maxCreatedAt)
	return &n, err
}

// Subject is an event to be compared with filters. Its tags are indexed once: an event may have
// MaxTags tags and each of hundreds of filters maxFilterItems values, and a comparison of every tag
// with every value would take seconds.
type Subject struct {
	*nostr.Event
	tags map[tag]struct{}
}

// tag is what filters see of a tag.
type tag struct{ name, value string }

// NewSubject indexes the tags of e.
func NewSubject(e *nostr.Event) Subject {
	tags := make(map[tag]struct{}, len(e.Tags))
	for _, t := range e.Tags {
		if len(t) > 1 {
			tags[tag{t[0], t[1]}] = struct{}{}
		}
	}
	return Subject{e, tags}
}

func (s Subject) has(name, value string) bool {
	_, there := s.tags[tag{name, value}]
	return there
}

// Matches tells whether the filter selects s. It ignores Limit.
func (f Filter) Matches(s Subject) bool {
	if f.IDs != nil && !slices.Contains(f.IDs, s.ID) ||
		f.Authors != nil && !slices.Contains(f.Authors, s.PubKey) ||
		f.Kinds != nil && !slices.Contains(f.Kinds, s.Kind) ||
		f.Since != nil && int64(s.CreatedAt) < *f.Since ||
		f.Until != nil && int64(s.CreatedAt) > *f.Until {
		return false
	}
	for name, values := range f.Tags {
		if !slices.ContainsFunc(values, func(v string) bool { return s.has(name, v) }) {
			return false
		}
	}
	return true
}

// MatchesAny tells whether one of filters selects s.
func MatchesAny(filters []Filter, s Subject) bool {
	return slices.ContainsFunc(filters, func(f Filter) bool { return f.Matches(s) })
}

// MarshalJSON writes the filter in the form of NIP-01.
func (f Filter) MarshalJSON() ([]byte, error) {
	out := map[string]any{}
	if f.IDs != nil {
		out["ids"] = f.IDs
	}
	if f.Authors != nil {
		out["authors"] = f.Authors
	}
	if f.Kinds != nil {
		out["kinds"] = f.Kinds
	}
	for name, values := range f.Tags {
		out["#"+name] = values
	}
	if f.Since != nil {
		out["since"] = *f.Since
	}
	if f.Until != nil {
		out["until"] = *f.Until
	}
	if f.Limit != nil {
		out["limit"] = *f.Limit
	}
	return json.Marshal(out)
}
