package contract

import (
	"context"
	"errors"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// complaint accepts each right error and rejects each wrong one.
func TestPeersComplain(t *testing.T) {
	c := PeerClass{Failed: adapters.CodeUnavailable}
	gone, late := adapters.Errorf(adapters.CodeUnavailable, "gone"), adapters.Errorf(adapters.CodeTimeout, "late")
	for name, one := range map[string]struct {
		m    Misbehaviour
		kind Answer
		err  error
		bad  bool
	}{
		"the right code":            {Misbehaviour{Part: Head}, Parsed, gone, false},
		"a success":                 {Misbehaviour{Part: Content}, Parsed, nil, true},
		"an untyped error":          {Misbehaviour{Part: Head}, Parsed, errors.New("gone"), true},
		"a bare context error":      {Misbehaviour{Part: Head, Late: true}, Parsed, context.DeadlineExceeded, true},
		"another code":              {Misbehaviour{Part: Head}, Parsed, adapters.NotFound("x", "y"), true},
		"late, in time":             {Misbehaviour{Part: Head, Late: true}, Parsed, late, false},
		"late, as if gone":          {Misbehaviour{Part: Head, Late: true}, Parsed, gone, true},
		"a status is enough":        {Misbehaviour{Part: Whole}, Status, nil, false},
		"a status there is not":     {Misbehaviour{Part: Head}, Status, nil, true},
		"half of what is handed on": {Misbehaviour{Part: Whole}, Forwarded, nil, true},
		"a secret":                  {Misbehaviour{Part: Head}, Parsed, adapters.Errorf(adapters.CodeUnavailable, "sesame"), true},
		"a whole page":              {Misbehaviour{Part: Head}, Parsed, adapters.Errorf(adapters.CodeUnavailable, "%s", long(2000)), true},
	} {
		if bad := c.complaint(one.m, PeerCall{Answer: one.kind}, one.err); (bad != "") != one.bad {
			t.Errorf("%s: complaint %q", name, bad)
		}
	}
}
