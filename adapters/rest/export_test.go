package rest

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// contractOf describes the request and the answers of an operation.
func (s *schemas) contractOf(rt route) map[string]any {
	op := map[string]any{"method": rt.Method, "path": rt.Path, "status": rt.status()}
	if rt.Body != nil {
		op["request"] = s.request(reflect.TypeOf(rt.Body))
	}
	if rt.Reply != nil {
		op["answer"] = s.Of(reflect.TypeOf(rt.Reply))
	}
	if rt.ReplyType != "" {
		op["answerType"] = rt.ReplyType
	}
	for _, a := range rt.Also {
		name := "answer of many"
		if a.Type != "" {
			name = "answer as " + a.Type
		}
		op[name] = s.Of(reflect.TypeOf(a.Body))
	}
	return op
}

// Contract is the JSON Schema document of one slot's HTTP contract: its types, and the request and
// answer type of each operation. It is nil for a slot without a contract.
func Contract(slot adapters.Slot) map[string]any {
	c, ok := adapters.ContractOf(slot)
	if !ok {
		return nil
	}
	v, err := adapters.ParseVersion(c.Version)
	if err != nil {
		return nil
	}
	s := newSchemas(make(map[string]any), "#/$defs/")
	operations := make(map[string]any)
	for _, rt := range routes() {
		if rt.Slot == slot {
			operations[rt.ID] = s.contractOf(rt)
		}
	}
	return map[string]any{
		"$schema":      "https://json-schema.org/draft/2020-12/schema",
		"$id":          "urn:agentbox:adapter-contract:" + string(slot) + ":v" + strconv.Itoa(v.Major),
		"title":        "Wire of the " + string(slot) + " slot",
		"$defs":        s.Defs,
		"x-operations": operations,
	}
}

// ContractFile is the file name of a slot's contract document.
func ContractFile(slot adapters.Slot) string {
	id, _ := Contract(slot)["$id"].(string)
	return string(slot) + "-" + id[strings.LastIndex(id, ":")+1:] + ".json"
}
