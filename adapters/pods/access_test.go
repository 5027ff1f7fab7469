package pods

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	owner    = "https://owner.test/#me"
	stranger = "https://stranger.test/#me"
)

// guardedPod is a pod on the reference server that only its owner may use, except for /public.txt.
func guardedPod(t *testing.T) Config {
	t.Helper()
	cfg := emptyPod(t)
	cfg.Auth = webID(owner)
	s := connected(t, cfg)
	rule := func(path, agent, modes, extra string) string {
		return fmt.Sprintf("@prefix acl: <http://www.w3.org/ns/auth/acl#>.\n<#r%d> a acl:Authorization; %s; acl:accessTo <%s%s>; acl:mode %s %s.\n",
			len(agent), agent, strings.TrimSuffix(cfg.BaseURL, "/"), path, modes, extra)
	}
	all := "acl:Read, acl:Write, acl:Control"
	write := func(path, contentType, body string) {
		t.Helper()
		_, err := s.Write(t.Context(), path, adapters.Body{ContentType: contentType, Reader: strings.NewReader(body), Size: -1}, adapters.Cond{})
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	write("/public.txt", "text/plain", "hello")
	write("/secret.txt", "text/plain", "hush")
	me := "acl:agent <" + owner + ">"
	write("/public.txt.acl", "text/turtle", rule("/public.txt", me, all, "")+
		rule("/public.txt", "acl:agentClass <http://xmlns.com/foaf/0.1/Agent>", "acl:Read", ""))
	// The rules of the container itself are in .acl inside it.
	write("/.acl", "text/turtle", rule("/", me, all, "; acl:default <"+cfg.BaseURL+">"))
	return cfg
}

// The reference server decides by Web Access Control.
func TestAccessControl(t *testing.T) {
	cfg := guardedPod(t)
	for name, c := range map[string]struct {
		who    webID
		denied adapters.Code
	}{
		"nobody":   {"", adapters.CodeUnauthenticated},
		"stranger": {stranger, adapters.CodePermissionDenied},
		"owner":    {owner, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Auth = c.who
			p := connected(t, cfg) // Connect also works with a guarded root
			if h := p.Health(t.Context()); h.State != adapters.StateHealthy {
				t.Errorf("health %+v", h)
			}
			one := func(_ any, err error) error { return err }
			body := adapters.Body{ContentType: "text/plain", Reader: strings.NewReader("x"), Size: 1}
			ops := adapters.PodPatch{Dialect: adapters.DialectJSONPatch, Body: []byte(`[{"op":"add","path":"/a","value":1}]`)}
			for what, err := range map[string]error{
				"write":  one(p.Write(t.Context(), "/new.txt", body, adapters.Cond{})),
				"read":   one(readPath(t.Context(), p, "/secret.txt", adapters.ReadOpt{})),
				"list":   one(p.List(t.Context(), "/", adapters.PageOpt{})),
				"create": one(p.CreateContainer(t.Context(), "/box-"+name+"/")),
			} {
				if adapters.CodeOf(err) != c.denied {
					t.Errorf("%s: %v, want %q", what, err, c.denied)
				}
			}
			if c.denied == "" {
				return
			}
			_, err := p.Patch(t.Context(), "/secret.txt", ops, adapters.Cond{})
			wantCode(t, "patch", err, c.denied)
			_, err = p.Del(t.Context(), "/secret.txt", adapters.Cond{})
			wantCode(t, "delete", err, c.denied)
			_, err = p.Subscribe(t.Context(), "/secret.txt")
			wantCode(t, "subscribe", err, c.denied)
			r, err := p.Read(t.Context(), "/public.txt", adapters.ReadOpt{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != "hello" || !strings.Contains(r.WACAllow, `public="read"`) {
				t.Errorf("%q, %v, WAC-Allow %s", b, err, r.WACAllow)
			}
		})
	}
}

func TestWhatMayBeDoneIsKeptOfARefusal(t *testing.T) {
	p := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WAC-Allow", `user="",public="read"`)
		w.Header().Set("WWW-Authenticate", "Nostr")
		w.WriteHeader(http.StatusUnauthorized)
	})
	_, err := p.Del(t.Context(), "/x", adapters.Cond{})
	e := wantCode(t, "delete", err, adapters.CodeUnauthenticated)
	if e.Fields["wac_allow"] != `user="",public="read"` || e.Fields["challenge"] != "Nostr" {
		t.Errorf("fields %v", e.Fields)
	}
}

func TestQuota(t *testing.T) {
	if testing.Short() {
		t.Skip("long: writes as much as the quota")
	}
	p := connected(t, emptyPod(t))
	_, err := p.Write(t.Context(), "/huge", adapters.Body{ContentType: "a/b", Reader: bytes.NewReader(make([]byte, quota+1)), Size: quota + 1}, adapters.Cond{})
	wantCode(t, "over quota", err, adapters.CodePayloadTooLarge)
	_, err = p.Head(t.Context(), "/huge", adapters.ReadOpt{})
	wantCode(t, "what was refused", err, adapters.CodeNotFound)
}
