package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

// otherMajor is a peer of slots that speaks other versions of their contracts: its description says so ("slots"), or
// it refuses a box that registers ("register"). The first argument names the file into which it writes its address.
func otherMajor() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = os.WriteFile(os.Args[1], []byte(l.Addr().String()+"\n"), 0o644)
	}
	if err == nil {
		err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			switch registers := os.Args[2] == "register"; {
			case registers && r.Method == http.MethodPost:
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"code": "CONTRACT_MISMATCH", "detail": "beads speaks contract 2.0, wanted 1.1"}`)
			case registers:
				<-r.Context().Done() // the slots are not connected before the box is refused
			case r.URL.Path == "/v1/meta":
				_, _ = io.WriteString(w, `{"adapter_contract_versions": {"beads": "2.0", "events": "7.1"}}`)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
