package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// fixedIdentity is an identity whose keys cannot be changed, because of err.
type fixedIdentity struct {
	rest.Identity
	err error
}

func (f fixedIdentity) Rotate(context.Context) (rest.IdentityReport, error) {
	return rest.IdentityReport{}, f.err
}

func (f fixedIdentity) Rekey(context.Context) error { return f.err }

// An administrator learns why a key cannot be changed. An error that has a code keeps it.
func TestKeysThatCannotBeChanged(t *testing.T) {
	for _, c := range []struct {
		path string
		err  error
		want int
		says string
	}{
		{"/v1/identity/rotate", errors.New("write nostr.key.enc: no space left on device"), 503, "cannot replace the private key: write nostr.key.enc: no space left on device"},
		{"/v1/identity/rekey", errors.New("open mgmt-key: read-only file system"), 503, "cannot change the management key: open mgmt-key: read-only file system"},
		{"/v1/identity/rekey", adapters.Errorf(adapters.CodeConflict, "the key is elsewhere"), 409, "the key is elsewhere"},
	} {
		server, err := rest.New(rest.Config{
			Slots: newSet(t, nil), Identity: fixedIdentity{err: c.err},
			Principal: func(context.Context) (rest.Principal, bool) {
				return rest.Principal{Role: rest.RoleAdmin, ID: "operator"}, true
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := httptest.NewRecorder()
		server.Handler().ServeHTTP(got, httptest.NewRequest(http.MethodPost, c.path, nil))
		server.Close()
		if got.Code != c.want || !strings.Contains(got.Body.String(), c.says) {
			t.Errorf("%s: %d %s", c.path, got.Code, got.Body)
		}
	}
}
