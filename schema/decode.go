package schema

import (
	"reflect"
	"strconv"
	"sync"
)

// valueDecoder is a type that decodes its own form in the manifest.
type valueDecoder interface{ fromTOML(any) error }

// decodeTable fills the struct dst from a table. If a key is absent, the default of the shape is
// used. A value that does not fit is ignored, because the validator has reported it.
func decodeTable(dst reflect.Value, s *shape, raw map[string]any) {
	fields := FieldsOf(dst.Type())
	for _, k := range s.keys {
		i, ok := fields[k.name]
		if !ok {
			continue
		}
		field := dst.Field(i)
		if v, written := raw[k.name]; written {
			decodeValue(field, k.shape, v)
		} else if k.shape.value != nil {
			decodeValue(field, k.shape, k.shape.value)
		} else if k.shape.kinds == kTable && !k.shape.optional && field.Kind() == reflect.Struct {
			decodeTable(field, k.shape, nil)
		}
	}
}

func decodeValue(dst reflect.Value, s *shape, v any) {
	if dst.Kind() == reflect.Pointer {
		fresh := reflect.New(dst.Type().Elem())
		decodeValue(fresh.Elem(), s, v)
		dst.Set(fresh)
		return
	}
	if d, ok := dst.Addr().Interface().(valueDecoder); ok {
		// The validator has run the same decoder and has reported the error.
		if d.fromTOML(v) != nil {
			dst.SetZero()
		}
		return
	}
	switch v := v.(type) {
	case string:
		if dst.Kind() == reflect.String {
			dst.SetString(v)
		}
	case bool:
		if dst.Kind() == reflect.Bool {
			dst.SetBool(v)
		}
	case int64:
		decodeInt(dst, v)
	case float64:
		if dst.Kind() == reflect.Float64 {
			dst.SetFloat(v)
		}
	case []any:
		decodeList(dst, s, v)
	case map[string]any:
		decodeMap(dst, s, v)
	}
}

func decodeInt(dst reflect.Value, v int64) {
	switch dst.Kind() {
	case reflect.Int, reflect.Int64:
		dst.SetInt(v)
	case reflect.Float64:
		dst.SetFloat(float64(v))
	case reflect.String: // an account given by number
		dst.SetString(strconv.FormatInt(v, 10))
	}
}

func decodeList(dst reflect.Value, s *shape, list []any) {
	if dst.Kind() != reflect.Slice {
		return
	}
	out := reflect.MakeSlice(dst.Type(), len(list), len(list))
	for i, e := range list {
		decodeValue(out.Index(i), s.items, e)
	}
	dst.Set(out)
}

func decodeMap(dst reflect.Value, s *shape, t map[string]any) {
	switch dst.Kind() {
	case reflect.Struct:
		decodeTable(dst, s, t)
	case reflect.Map:
		if dst.Type().Elem().Kind() == reflect.Interface {
			dst.Set(reflect.ValueOf(t))
			return
		}
		out := reflect.MakeMapWithSize(dst.Type(), len(t))
		for name, v := range t {
			entry := s.child(name)
			if entry == nil || entry.kinds&kindOf(v) == 0 {
				continue
			}
			e := reflect.New(dst.Type().Elem()).Elem()
			decodeValue(e, entry, v)
			out.SetMapIndex(reflect.ValueOf(name), e)
		}
		dst.Set(out)
	}
}

var fieldCache sync.Map // reflect.Type → map[string]int

// FieldsOf maps the keys of a table to the fields of the struct into which the table is decoded.
// The map is shared and must not be changed. FieldsOf is safe for concurrent use.
func FieldsOf(t reflect.Type) map[string]int {
	if f, ok := fieldCache.Load(t); ok {
		return f.(map[string]int)
	}
	fields := map[string]int{}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("toml"); name != "" {
			fields[name] = i
		}
	}
	fieldCache.Store(t, fields)
	return fields
}
