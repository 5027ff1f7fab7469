package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		line string
		code int // 0: accepted
		id   string
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, 0, "1"},
		{`{"jsonrpc":"2.0","id":"a","method":"ping","params":{}}`, 0, `"a"`},
		{`{"jsonrpc":"2.0","method":"agent.event","params":{}}`, 0, ""},
		{`{"jsonrpc":"2.0","id":1,"result":null}`, 0, "1"},
		{`{"jsonrpc":"2.0","id":1,"error":null,"result":{}}`, 0, "1"},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`, 0, "null"},
		{``, rpcParse, ""}, {`{`, rpcParse, ""}, {`hello`, rpcParse, ""}, {"\"\xff\"", rpcParse, ""}, {`{"jsonrpc":"2.0","method":"\ud800"}`, rpcParse, ""}, {"{} {}", rpcParse, ""},
		{`[]`, rpcInvalidRequest, ""}, {`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, rpcInvalidRequest, ""},
		{`"text"`, rpcInvalidRequest, ""}, {`null`, rpcInvalidRequest, ""}, {`{}`, rpcInvalidRequest, ""},
		{`{"id":1,"method":"ping"}`, rpcInvalidRequest, ""}, {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, rpcInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, rpcInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, rpcInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":7,"method":3}`, rpcInvalidRequest, "7"},
		{`{"jsonrpc":"2.0","id":1}`, rpcInvalidRequest, ""}, {`{"jsonrpc":"2.0","result":1}`, rpcInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}`, rpcInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":1,"method":"a","result":1}`, rpcInvalidRequest, ""},
	} {
		m, bad := decode([]byte(c.line))
		code := 0
		if bad != nil {
			code = bad.Code
		}
		if code != c.code || string(m.ID) != c.id {
			t.Errorf("%q: code %d, id %q; want %d, %q", c.line, code, m.ID, c.code, c.id)
		}
	}
}

func TestErrorsCrossTheChannel(t *testing.T) {
	for _, row := range adapters.Codes() {
		if row.Code == adapters.CodeInternal {
			continue
		}
		sent := adapters.Errorf(row.Code, "because").With("id", "x")
		got := adapters.AsError(fromRPC(toRPC(sent)))
		if got.Code != row.Code || got.Message != "because" || got.Retryable != sent.Retryable || got.Fields["id"] != "x" {
			t.Errorf("%s came as %+v", row.Code, got)
		}
	}
	internal := toRPC(errors.New("secret"))
	if internal.Code != rpcInternal || bytes.Contains(mustJSON(internal), []byte("secret")) {
		t.Errorf("internal: %+v", internal)
	}
	for code, want := range map[int]adapters.Code{
		rpcNoMethod: adapters.CodeUnsupported, rpcInvalidParams: adapters.CodeValidation, rpcInternal: adapters.CodeUnavailable,
		rpcParse: adapters.CodeUnavailable, rpcInvalidRequest: adapters.CodeUnavailable, -1: adapters.CodeUnavailable,
	} {
		if got := adapters.CodeOf(fromRPC(&rpcError{Code: code, Message: "m"})); got != want {
			t.Errorf("%d means %s, want %s", code, got, want)
		}
	}
}

// A host need not send a problem document: the text is then that of JSON-RPC itself.
func TestTheMessageOfAForeignErrorIsKept(t *testing.T) {
	for data, want := range map[string]adapters.Error{
		`{"code":"SPAWN_ERROR"}`:                    {Code: adapters.CodeSpawn, Message: "no room"},
		`{"code":"SPAWN_ERROR","detail":"no disk"}`: {Code: adapters.CodeSpawn, Message: "no disk"},
		`{"why":5}`: {Code: adapters.CodeUnavailable, Message: "the peer answered 502 Bad Gateway: no room"},
		`5`:         {Code: adapters.CodeUnavailable, Message: "the peer answered 502 Bad Gateway: no room"},
		`null`:      {Code: adapters.CodeUnavailable, Message: "the peer answered 502 Bad Gateway: no room"},
		``:          {Code: adapters.CodeUnavailable, Message: "the peer answered 502 Bad Gateway: no room"},
	} {
		got := adapters.AsError(fromRPC(&rpcError{Code: rpcOurs, Message: "no room", Data: json.RawMessage(data)}))
		if got.Code != want.Code || got.Message != want.Message {
			t.Errorf("%s came as %s: %s", data, got.Code, got.Message)
		}
	}
}

func TestEncodeRefusesWhatFitsNoLine(t *testing.T) {
	if _, err := encode(message{ID: json.RawMessage("1"), Result: mustJSON(string(make([]byte, maxLine)))}); !errors.Is(err, adapters.ErrPayloadTooLarge) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"agent.spawn","params":{"command":"x","args":["a"],"_meta":{"actor":"b"}}}`,
		`{"jsonrpc":"2.0","id":"1","error":{"code":-32000,"message":"m","data":{"code":"NOT_FOUND"}}}`, `[1]`, "\xff", `{"jsonrpc":"2.0","method":"a","params":[]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, bad := decode(line)
		if bad != nil {
			if bad.Code != rpcParse && bad.Code != rpcInvalidRequest {
				t.Fatalf("code %d", bad.Code)
			}
			if m.ID != nil && !goodID(m.ID) {
				t.Fatalf("would answer to %q", m.ID)
			}
			return
		}
		out, err := encode(m)
		if err != nil {
			if len(line) < maxLine/8 {
				t.Fatal(err)
			}
			return
		}
		if bytes.IndexByte(out, '\n') != len(out)-1 {
			t.Fatalf("more than a line: %q", out)
		}
		again, bad := decode(out)
		if bad != nil || again.isAnswer() != m.isAnswer() || !bytes.Equal(mustJSON(again), mustJSON(m)) {
			t.Fatalf("%q became %q: %v", line, out, bad)
		}
		for _, read := range []func() error{
			func() error { _, err := params[spawnParams](m.Params); return err },
			func() error { _, err := params[eventParams](m.Params); return err },
			func() error { _, err := params[subscribeParams](m.Params); return err },
		} {
			if err := read(); err != nil && adapters.CodeOf(err) != adapters.CodeValidation {
				t.Fatal(err)
			}
		}
		if m.Error != nil && adapters.CodeOf(fromRPC(m.Error)) == "" {
			t.Fatal("an error without a code")
		}
	})
}
