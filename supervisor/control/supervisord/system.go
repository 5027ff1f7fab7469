package supervisord

import (
	"cmp"
	"fmt"
	"slices"
)

func (s session) listMethods([]any) (any, error) {
	names := []any{}
	for name := range s.methods {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b any) int { return cmp.Compare(a.(string), b.(string)) })
	return names, nil
}

func (s session) methodHelp(args []any) (any, error) {
	m, known := s.methods[args[0].(string)]
	if !known {
		return nil, newFault(signatureUnsupported, "")
	}
	return m.doc, nil
}

func (s session) methodSignature(args []any) (any, error) {
	m, known := s.methods[args[0].(string)]
	if !known {
		return nil, newFault(signatureUnsupported, "")
	}
	out := []any{}
	for _, name := range m.signature {
		out = append(out, name)
	}
	return out, nil
}

// multicall carries out the calls one after the other. Each result is the value itself or a fault, as
// supervisord answers, although its documentation says that the value is in a list.
func (s session) multicall(args []any) (any, error) {
	calls := args[0].([]any)
	if len(calls) > maxCalls {
		return nil, newFault(badArguments, fmt.Sprintf("more than %d calls", maxCalls))
	}
	out := []any{}
	size := 0
	for _, c := range calls {
		result := encode(s.oneOf(c, size))
		size += len(result)
		out = append(out, result)
	}
	return out, nil
}

// oneOf carries out one call of several, whose answers have the size so far.
func (s session) oneOf(c any, size int) any {
	members, _ := c.(map[string]any)
	name, named := members["methodName"].(string)
	params, listed := members["params"].([]any)
	if _, given := members["params"]; !named || given && !listed {
		return newFault(incorrectParameters, "").value()
	}
	switch {
	case name == "system.multicall":
		return newFault(incorrectParameters, "a multicall within a multicall").value()
	case size > maxAnswer:
		return newFault(failed, "the answers to the other calls are too long").value()
	}
	v, err := s.call(call{name, params})
	if err != nil {
		return asFault(err).value()
	}
	return v
}
