package orchestrator

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// maxLine is the longest line of the channel, its newline not counted.
const maxLine = 1 << 20

// The error codes of JSON-RPC 2.0 and those of agentbox, which have more in data.
const (
	rpcParse          = -32700
	rpcInvalidRequest = -32600
	rpcNoMethod       = -32601
	rpcInvalidParams  = -32602
	rpcInternal       = -32603
	rpcOurs           = -32000
)

// message is any message of JSON-RPC 2.0.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  *string         `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

// rpcError is the error in an answer. For agentbox's own codes, Data is a problem document whose
// "code" is the adapters.Code.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }

var null = json.RawMessage("null")

// decode reads one line. What comes back with an error is at most good for its
// id, to answer with.
func decode(line []byte) (message, *rpcError) {
	line = bytes.TrimSpace(line)
	if err := adapters.CheckUnicode("message", line); err != nil || !json.Valid(line) {
		return message{}, &rpcError{Code: rpcParse, Message: "not a JSON text of Unicode in UTF-8"}
	}
	var m message
	if line[0] != '{' {
		return m, invalid("not an object; batches are not taken")
	}
	if err := json.Unmarshal(line, &m); err != nil {
		// The id may be sound though another member is not.
		var only struct{ ID json.RawMessage }
		if json.Unmarshal(line, &only) != nil || !goodID(only.ID) {
			only.ID = nil
		}
		return message{ID: only.ID}, invalid("a member has the wrong type")
	}
	return m, m.check()
}

func invalid(why string) *rpcError { return &rpcError{Code: rpcInvalidRequest, Message: why} }

func (m *message) check() *rpcError {
	if m.JSONRPC != "2.0" {
		m.ID = nil
		return invalid(`jsonrpc is not "2.0"`)
	}
	if m.isAnswer() {
		if (m.Error == nil) == (m.Result == nil) || m.ID == nil {
			m.ID = nil
			return invalid("neither a request nor an answer")
		}
		return nil
	}
	if m.Error != nil || m.Result != nil || m.ID != nil && !goodID(m.ID) {
		m.ID = nil
		return invalid("not a proper request")
	}
	return nil
}

func (m *message) isAnswer() bool { return m.Method == nil }

// goodID accepts a string or a number, as short as any sane peer's.
func goodID(id json.RawMessage) bool {
	return len(id) > 0 && len(id) <= 256 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// encode writes one line. A message that is too long for one is PAYLOAD_TOO_LARGE.
func encode(m message) ([]byte, error) {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return nil, adapters.Errorf(adapters.CodeInternal, "cannot be written as JSON").Wrap(err)
	}
	if len(line) > maxLine {
		return nil, adapters.TooLarge("a message of the channel", maxLine, int64(len(line)))
	}
	return append(line, '\n'), nil
}

// toRPC makes the answer to a call that failed.
func toRPC(err error) *rpcError {
	e := adapters.AsError(err)
	code := rpcOurs
	switch e.Code {
	case adapters.CodeValidation:
		code = rpcInvalidParams
	case adapters.CodeInternal:
		code = rpcInternal
	}
	_, data := adapters.Problem(e)
	data = bytes.TrimSpace(data)
	var p struct{ Detail string }
	if json.Unmarshal(data, &p) != nil || p.Detail == "" {
		p.Detail = string(e.Code)
	}
	return &rpcError{Code: code, Message: p.Detail, Data: data}
}

// rpcStatus is what an error without data.code means, as an HTTP status.
var rpcStatus = map[int]int{
	rpcNoMethod: http.StatusNotImplemented, rpcInvalidParams: http.StatusBadRequest,
	rpcInvalidRequest: http.StatusBadGateway, rpcParse: http.StatusBadGateway, rpcInternal: http.StatusBadGateway,
}

// fromRPC makes an error of a peer's.
func fromRPC(e *rpcError) error {
	status, ok := rpcStatus[e.Code]
	if !ok {
		status = http.StatusBadGateway
	}
	var doc map[string]json.RawMessage
	if json.Unmarshal(e.Data, &doc) != nil || doc == nil {
		doc = map[string]json.RawMessage{}
	}
	if doc["detail"] == nil && doc["message"] == nil {
		doc["message"] = mustJSON(e.Message)
	}
	// Its values have just been decoded, so they can be encoded.
	return adapters.FromProblem(status, http.Header{"Content-Type": {adapters.ProblemType}}, mustJSON(doc))
}
