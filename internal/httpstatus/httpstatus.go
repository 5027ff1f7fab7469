// Package httpstatus tells which status a handler answered with, for those who
// count answers or put them into spans. It must never change an answer.
package httpstatus

import "net/http"

// Recorder passes an answer on and remembers its status. Flush and Hijack go
// through Unwrap, as http.ResponseController and the WebSocket library ask for
// them. Like every ResponseWriter it is for one goroutine.
type Recorder struct {
	http.ResponseWriter
	// Status is 0 before the header.
	Status int
}

// WriteHeader implements http.ResponseWriter.
func (r *Recorder) WriteHeader(status int) {
	// 1xx are not the answer yet, except the switch to another protocol.
	if r.Status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		r.Status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(b []byte) (int, error) {
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap implements what http.ResponseController looks for.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
