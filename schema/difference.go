package schema

import (
	"reflect"
	"slices"
)

// Difference names the keys in which two manifests differ, in document order. A name is
// SECTION.KEY, or only SECTION if that is not a table with fixed keys. Only the given sections are
// compared.
func Difference(a, b *Manifest, sections ...string) []string {
	var keys []string
	forEachKey(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem(), func(section string, x, y reflect.Value) {
		switch {
		case !slices.Contains(sections, section) || reflect.DeepEqual(x.Interface(), y.Interface()):
		case x.Kind() != reflect.Struct:
			keys = append(keys, section)
		default:
			forEachKey(x, y, func(key string, x, y reflect.Value) {
				if !reflect.DeepEqual(x.Interface(), y.Interface()) {
					keys = append(keys, section+"."+key)
				}
			})
		}
	})
	return keys
}

func forEachKey(x, y reflect.Value, visit func(key string, x, y reflect.Value)) {
	for i := range x.NumField() {
		if key := x.Type().Field(i).Tag.Get("toml"); key != "" {
			visit(key, x.Field(i), y.Field(i))
		}
	}
}
