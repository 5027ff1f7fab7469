package catalog

// Programs are the program tables of the features that are on, in the manifest's
// own syntax, with their templates filled in.
func (v View) Programs() map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, f := range Load().Active(v) {
		for name, table := range f.Programs {
			out[name] = v.filled(table).(map[string]any)
		}
	}
	return out
}

// filled is a copy of the value; a template that cannot be filled stays as it is.
func (v View) filled(value any) any {
	switch value := value.(type) {
	case string:
		if text, err := v.FillEscaped(value); err == nil {
			return text
		}
	case []any:
		out := make([]any, len(value))
		for i, e := range value {
			out[i] = v.filled(e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(value))
		for k, e := range value {
			out[k] = v.filled(e)
		}
		return out
	}
	return value
}
