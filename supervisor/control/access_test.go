package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func TestAuthorize(t *testing.T) {
	p := policy{uid: 1000, gid: 2000, mayControl: func(name string) bool { return name == "trusted" }}
	cases := []struct {
		name   string
		peer   Peer
		want   Access // the highest access that is granted
		reason string
	}{
		{"root", Peer{PID: 5, UID: 0}, Write, ""},
		{"own user", Peer{PID: 5, UID: 1000}, Write, ""},
		{"own user by the abstract socket", Peer{PID: 5, UID: 1000, Abstract: true}, Write, ""},
		{"own user from outside by a file", Peer{PID: 0, UID: 1000}, Write, ""},
		{"primary group", Peer{PID: 5, UID: 7, GID: 2000}, Read, "may only read"},
		{"supplementary group", Peer{PID: 5, UID: 7, GID: 7, Groups: []uint32{1, 2000}}, Read, "may only read"},
		{"stranger", Peer{PID: 5, UID: 7, GID: 7, Groups: []uint32{1}}, Open, "neither root nor"},
		{"program of the own user", Peer{PID: 5, UID: 1000, Program: "web"}, Read, "program web may only read"},
		{"program of root", Peer{PID: 5, UID: 0, Program: "web"}, Read, "program web may only read"},
		{"program with control", Peer{PID: 5, UID: 1000, Program: "trusted"}, Write, ""},
		{"control gives no user's rights", Peer{PID: 5, UID: 7, GID: 7, Program: "trusted"}, Open, "neither root nor"},
		{"control gives no more than the group", Peer{PID: 5, UID: 7, GID: 2000, Program: "trusted"}, Read, "may only read"},
		{"viewer over HTTP", Peer{Granted: Read, Principal: "key:view"}, Read, "key:view may only read; a key of [api.keys] with the role operator"},
		{"operator over HTTP", Peer{Granted: Write, Principal: "key:op"}, Write, ""},
		{"agent over HTTP", Peer{Granted: Open, Principal: "agent:a1"}, Open, "agent:a1 is not for programs and the box"},
		{"gone already", Peer{PID: 5, UID: 0, Uncertain: true}, Read, "is gone"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, need := range []Access{Open, Read, Write} {
				refused := p.authorize(c.peer, need)
				if (refused == nil) != (need <= c.want) {
					t.Errorf("%s: %v", need, refused)
				}
				if refused != nil && (refused.Code != api.CodeForbidden || !strings.Contains(refused.Message, c.reason)) {
					t.Errorf("%s: %v does not say %q", need, refused, c.reason)
				}
			}
		})
	}
	p.uid = 0
	for group, want := range map[uint32]string{
		2000: "refused: user 7 may only read; only root may make changes",
		7:    "refused: user 7 is neither root nor in group 2000",
	} {
		if refused := p.authorize(Peer{PID: 5, UID: 7, GID: group}, Write); refused == nil || refused.Message != want {
			t.Errorf("an agentinit of root says %v, want %s", refused, want)
		}
	}
	if p.authorize(Peer{PID: 0, UID: 0, Abstract: true}, Open) == nil {
		t.Error("an invisible peer on the abstract socket was let in")
	}
}

func TestThrottleCountsWhatItHolds(t *testing.T) {
	th := eachSecond()
	now := time.Unix(100, 0)
	var passed []uint64
	for i := range 25 {
		if n, ok := th.Pass(now.Add(time.Duration(i) * 100 * time.Millisecond)); ok {
			passed = append(passed, n)
		}
	}
	if !slices.Equal(passed, []uint64{0, 9, 9}) {
		t.Fatalf("got %v", passed)
	}
}
