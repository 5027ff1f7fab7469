package control

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/ijson"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// Limits for what a request may contain.
const (
	maxNames  = 2000
	maxName   = 256 // bytes
	maxGrep   = 1024
	maxStates = 2 * maxGrep // of a grep; enough for every one without counted repetitions
	maxReason = 200
)

// decode reads a request's body: one JSON object with known keys and Unicode texts. An empty body gives
// the zero value.
func decode[T any](body io.Reader) (T, error) {
	var v, zero T
	raw, err := io.ReadAll(body)
	_, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isTooLarge:
		return zero, err
	case err == nil && len(bytes.TrimSpace(raw)) == 0:
		return zero, nil
	case err == nil:
		if err = ijson.Check(raw); err != nil {
			return zero, api.Errorf(api.CodeBadRequest, "the request's body %v", err)
		}
		err = noNull(raw)
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		err = d.Decode(&v)
	}
	if err != nil {
		return zero, api.Errorf(api.CodeBadRequest, "cannot read the request's body: %v", err)
	}
	return v, nil
}

// noNull refuses null, for the request and for its members: encoding/json reads it as "not given". A
// caller whose variable is empty would get {"dry_run":null} carried out.
func noNull(raw []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	if members == nil {
		return errors.New("it must be a JSON object, not null")
	}
	for name, value := range members {
		if string(value) == "null" {
			return fmt.Errorf("%.40q must not be null; leave it out", name)
		}
	}
	return nil
}

func checkNames(names []string) error {
	if len(names) > maxNames {
		return api.Errorf(api.CodeBadRequest, "more than %d names", maxNames)
	}
	for _, n := range names {
		if n == "" || len(n) > maxName {
			return api.Errorf(api.CodeBadRequest, "a name has 1 to %d bytes", maxName)
		}
	}
	return nil
}

// decodeAction reads the request of start, stop, restart and signal.
func decodeAction(body io.Reader) (api.ActionRequest, error) {
	req, err := decode[api.ActionRequest](body)
	if err != nil {
		return req, err
	}
	switch {
	case req.All && len(req.Names) > 0:
		return req, api.Errorf(api.CodeBadRequest, "names and all exclude each other")
	case !req.All && len(req.Names) == 0:
		return req, api.Errorf(api.CodeBadRequest, "neither names nor all is given")
	case req.TimeoutMS < 0:
		return req, api.Errorf(api.CodeBadRequest, "timeout_ms must not be negative")
	case req.Rolling && req.NoWait:
		return req, api.Errorf(api.CodeBadRequest, "a rolling restart must wait: leave out no_wait")
	}
	return req, checkNames(req.Names)
}

// checkQuery refuses parameters that the route does not have. If a misspelt one were ignored, the
// answer would contain more than was requested.
func checkQuery(raw string, params []param) error {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "cannot read the query: %v", err)
	}
	for key, values := range q {
		i := slices.IndexFunc(params, func(p param) bool { return p.Name == key })
		if i < 0 {
			return api.Errorf(api.CodeBadRequest, "unknown parameter %q: %s", key, paramNames(params))
		}
		if len(values) > 1 && !params[i].Repeated {
			return api.Errorf(api.CodeBadRequest, "parameter %s is given %d times", key, len(values))
		}
	}
	return nil
}

// paramNames says which parameters a route has.
func paramNames(params []param) string {
	if len(params) == 0 {
		return "there is none here"
	}
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.Name
	}
	return "use " + strings.Join(names, ", ")
}

// decodeLogs reads the query of logs. It does not resolve the names of programs.
func decodeLogs(q url.Values, boot string) (logs.Query, error) {
	out := logs.Query{Programs: q["name"]}
	if err := checkNames(out.Programs); err != nil {
		return out, err
	}
	if v := q.Get("stream"); v != "" {
		var stream logs.Stream
		if stream.UnmarshalText([]byte(v)) != nil {
			return out, api.Errorf(api.CodeBadRequest, "stream must be stdout or stderr, not %q", v)
		}
		out.Streams = []logs.Stream{stream}
	}
	var err error
	switch v := q.Get("lines"); v {
	case "":
	case "all":
		out.Files = true
	default:
		if out.Lines, err = strconv.Atoi(v); err != nil {
			return out, api.Errorf(api.CodeBadRequest, "lines must be a number or all, not %q", v)
		}
		out.Files = out.Lines > 0
		out.Lines = cmp.Or(out.Lines, -1) // in logs.Query, 0 is all
	}
	for name, at := range map[string]*time.Time{"since": &out.Since, "until": &out.Until} {
		if v := q.Get(name); v != "" {
			if *at, err = time.Parse(time.RFC3339Nano, v); err != nil {
				return out, api.Errorf(api.CodeBadRequest, "%s must be an RFC 3339 time, not %q", name, v)
			}
			out.Files = true
		}
	}
	if !out.Until.IsZero() && out.Until.Before(out.Since) {
		return out, api.Errorf(api.CodeBadRequest, "until (%s) is before since (%s): no line can be between them",
			q.Get("until"), q.Get("since"))
	}
	if v := q.Get("after"); v != "" {
		if err := resume(&out, v, boot); err != nil {
			return out, err
		}
	}
	if out.Follow, err = boolParam(q, "follow"); err != nil {
		return out, err
	}
	out.Grep, err = compileGrep(q.Get("grep"))
	return out, err
}

// compileGrep accepts RE2, which matches in linear time, of bounded length.
func compileGrep(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil
	}
	if len(pattern) > maxGrep {
		return nil, api.Errorf(api.CodeBadRequest, "grep is longer than %d bytes", maxGrep)
	}
	var re *regexp.Regexp
	tree, err := syntax.Parse(pattern, syntax.Perl) // as regexp.Compile does
	if err == nil {
		if n := states(tree); n > maxStates {
			return nil, api.Errorf(api.CodeBadRequest, "grep has %d parts if its repetitions such as x{9} are written out; at most %d are searched for", n, maxStates)
		}
		re, err = regexp.Compile(pattern)
	}
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "grep is not a regular expression: %v", err)
	}
	return re, nil
}

// states estimates how many steps a regular expression takes for each character of a line. With counted
// repetitions, a short one takes a million. A match cannot be interrupted, so it would use the
// processor for minutes after its client has disconnected.
func states(tree *syntax.Regexp) int {
	if tree.Op == syntax.OpLiteral {
		return len(tree.Rune)
	}
	n := 1
	for _, sub := range tree.Sub {
		n += states(sub)
	}
	if tree.Op == syntax.OpRepeat {
		n *= max(1, tree.Min, tree.Max)
	}
	return n
}

func decodeEvents(q url.Values, boot string) (since uint64, follow bool, err error) {
	if v := q.Get("since"); v != "" {
		if since, err = eventNumber(v, boot); err != nil {
			return 0, false, err
		}
	}
	follow, err = boolParam(q, "follow")
	return since, follow, err
}

func decodeListen(q url.Values) (api.ListenQuery, error) {
	out := api.ListenQuery{Pool: q.Get("pool"), Buffer: supervisord.DefaultBuffer}
	for _, list := range q["events"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			if err := supervisord.CheckEvent(name); err != nil {
				return out, api.Errorf(api.CodeBadRequest, "%v", err)
			}
			out.Events = append(out.Events, name)
		}
	}
	if len(out.Events) == 0 {
		return out, api.Errorf(api.CodeBadRequest, "name the events to listen to, such as PROCESS_STATE")
	}
	if v := q.Get("buffer"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > supervisord.MaxBuffer {
			return out, api.Errorf(api.CodeBadRequest, "buffer must be a number from 1 to %d, not %q", supervisord.MaxBuffer, v)
		}
		out.Buffer = n
	}
	if out.Pool != "" {
		if err := supervisord.CheckPool(out.Pool); err != nil {
			return out, api.Errorf(api.CodeBadRequest, "%v", err)
		}
	}
	return out, nil
}

func decodeWait(q url.Values) (api.WaitQuery, error) {
	out := api.WaitQuery{Names: q["name"], For: strings.ToLower(q.Get("for"))}
	if err := checkNames(out.Names); err != nil {
		return out, err
	}
	out.For = cmp.Or(out.For, api.ForReady)
	if _, ok := conditions[out.For]; !ok {
		return out, api.Errorf(api.CodeBadRequest, "unknown condition %q: write %s", out.For, api.ForAny)
	}
	if v := q.Get("timeout"); v != "" {
		var err error
		if out.Timeout, err = time.ParseDuration(v); err != nil || out.Timeout < 0 {
			return out, api.Errorf(api.CodeBadRequest, "timeout must be a duration such as 30s, not %q", v)
		}
	}
	return out, nil
}

func boolParam(q url.Values, name string) (bool, error) {
	v := q.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, api.Errorf(api.CodeBadRequest, "%s must be true or false", name)
	}
	return b, nil
}
