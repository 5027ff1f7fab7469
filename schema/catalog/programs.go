package catalog

// Programs returns the program tables of the features that are on, in the manifest's own syntax,
// with filled templates.
func (v View) Programs() map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, f := range Load().Active(v) {
		for name, table := range f.Programs {
			out[name] = v.Filled(table, func(error) {}).(map[string]any)
		}
	}
	return out
}

// Filled returns a copy of a value of the catalogue with filled templates. If a template cannot be
// filled, Filled calls failed with the error and keeps the template.
func (v View) Filled(value any, failed func(error)) any {
	switch value := value.(type) {
	case string:
		text, err := v.FillEscaped(value)
		if err != nil {
			failed(err)
			return value
		}
		return text
	case []any:
		out := make([]any, len(value))
		for i, e := range value {
			out[i] = v.Filled(e, failed)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(value))
		for k, e := range value {
			out[k] = v.Filled(e, failed)
		}
		return out
	}
	return value
}
