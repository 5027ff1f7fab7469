package wac

import (
	"net/url"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
)

const (
	alice = "https://alice.test/#me"
	key   = "did:nostr:0000000000000000000000000000000000000000000000000000000000000001"
	app   = "https://app.test"
)

func parse(t testing.TB, doc string) (acl []rdf.Triple) {
	t.Helper()
	base, err := url.Parse("http://h.test/c/.acl")
	if err != nil {
		t.Fatal(err)
	}
	doc = "@prefix acl: <http://www.w3.org/ns/auth/acl#>. @prefix foaf: <http://xmlns.com/foaf/0.1/>. " + doc
	if err := rdf.Parse(rdf.MediaTurtle, []byte(doc), base, func(x rdf.Triple) { acl = append(acl, x) }); err != nil {
		t.Fatal(err)
	}
	return acl
}

func TestAllowed(t *testing.T) {
	public := "a acl:Authorization; acl:agentClass foaf:Agent; "
	for name, c := range map[string]struct {
		acl       string
		inherited bool
		who       Agent
		want      string
	}{
		"empty":                  {"", false, Agent{IDs: []string{alice}}, ""},
		"owner":                  {"<#o> a acl:Authorization; acl:agent <" + key + ">; acl:accessTo <./>; acl:default <./>; acl:mode acl:Read, acl:Write, acl:Append, acl:Control.", false, Agent{IDs: []string{key}}, "read write append control"},
		"owner, inherited":       {"<#o> a acl:Authorization; acl:agent <" + key + ">; acl:accessTo <./>; acl:default <./>; acl:mode acl:Read, acl:Write, acl:Append, acl:Control.", true, Agent{IDs: []string{key}}, "read write append control"},
		"another":                {"<#o> a acl:Authorization; acl:agent <" + key + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{alice}}, ""},
		"anonymous":              {"<#o> a acl:Authorization; acl:agent <" + key + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"one of several names":   {"<#o> a acl:Authorization; acl:agent <" + alice + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{key, alice}}, "read"},
		"public":                 {"[] " + public + "acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, "read"},
		"public, also known":     {"[] " + public + "acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{alice}}, "read"},
		"authenticated":          {"[] a acl:Authorization; acl:agentClass acl:AuthenticatedAgent; acl:accessTo <./>; acl:mode acl:Append.", false, Agent{IDs: []string{alice}}, "append"},
		"authenticated, unknown": {"[] a acl:Authorization; acl:agentClass acl:AuthenticatedAgent; acl:accessTo <./>; acl:mode acl:Append.", false, Agent{}, ""},
		"union":                  {"[] " + public + "acl:accessTo <./>; acl:mode acl:Read. [] a acl:Authorization; acl:agent <" + alice + ">; acl:accessTo <./>; acl:mode acl:Control.", false, Agent{IDs: []string{alice}}, "read control"},
		"write is append":        {"[] " + public + "acl:accessTo <./>; acl:mode acl:Write.", false, Agent{}, "write append"},
		"append is not write":    {"[] " + public + "acl:accessTo <./>; acl:mode acl:Append.", false, Agent{}, "append"},
		"control is not read":    {"[] " + public + "acl:accessTo <./>; acl:mode acl:Control.", false, Agent{}, "control"},

		"accessTo does not inherit": {"[] " + public + "acl:accessTo <./>; acl:mode acl:Read.", true, Agent{}, ""},
		"default is not accessTo":   {"[] " + public + "acl:default <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"default":                   {"[] " + public + "acl:default <./>; acl:mode acl:Read.", true, Agent{}, "read"},
		"another resource":          {"[] " + public + "acl:accessTo <./x>; acl:mode acl:Read.", false, Agent{}, ""},
		"several resources":         {"[] " + public + "acl:accessTo <./x>, <./>; acl:mode acl:Read.", false, Agent{}, "read"},
		"the origin's root":         {"[] " + public + "acl:accessTo </>; acl:mode acl:Read.", false, Agent{}, ""},

		"no type":         {"[] acl:agentClass foaf:Agent; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"another type":    {"[] a acl:Rule; acl:agentClass foaf:Agent; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"no mode":         {"[] " + public + "acl:accessTo <./>.", false, Agent{}, ""},
		"unknown mode":    {"[] " + public + "acl:accessTo <./>; acl:mode acl:All, <Read>.", false, Agent{}, ""},
		"no agent":        {"[] a acl:Authorization; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{alice}}, ""},
		"group":           {"[] a acl:Authorization; acl:agentGroup <#g>; acl:accessTo <./>; acl:mode acl:Read. <#g> <http://www.w3.org/2006/vcard/ns#hasMember> <" + alice + ">.", false, Agent{IDs: []string{alice}}, ""},
		"literals":        {"[] a acl:Authorization; acl:agent '" + alice + "'; acl:agentClass foaf:Agent; acl:accessTo 'http://h.test/c/'; acl:mode acl:Read.", false, Agent{IDs: []string{alice}}, ""},
		"literal mode":    {"[] " + public + "acl:accessTo <./>; acl:mode 'http://www.w3.org/ns/auth/acl#Read'.", false, Agent{}, ""},
		"parts of two":    {"<#a> a acl:Authorization; acl:agentClass foaf:Agent. <#b> a acl:Authorization; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"an empty name":   {"[] a acl:Authorization; acl:agent 'x'; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{""}}, ""},
		"class as agent":  {"[] a acl:Authorization; acl:agent foaf:Agent; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{alice}}, ""},
		"agent in a list": {"[] a acl:Authorization; acl:agent (<" + alice + ">); acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{alice}}, ""},

		"origin":                 {"[] " + public + "acl:origin <" + app + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{Origin: app}, "read"},
		"one of the origins":     {"[] " + public + "acl:origin <https://x.test>, <" + app + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{Origin: app}, "read"},
		"another origin":         {"[] " + public + "acl:origin <" + app + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{Origin: "https://evil.test"}, ""},
		"no origin":              {"[] " + public + "acl:origin <" + app + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"a broken origin":        {"[] " + public + "acl:origin '" + app + "'; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{Origin: app}, ""},
		"a broken origin, none":  {"[] " + public + "acl:origin '" + app + "'; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, ""},
		"an origin, no agent":    {"[] a acl:Authorization; acl:origin <" + app + ">; acl:accessTo <./>; acl:mode acl:Read.", false, Agent{IDs: []string{alice}, Origin: app}, ""},
		"no rule about origins":  {"[] " + public + "acl:accessTo <./>; acl:mode acl:Read.", false, Agent{Origin: app}, "read"},
		"origin of another rule": {"[] " + public + "acl:origin <" + app + ">; acl:accessTo <./>; acl:mode acl:Write. [] " + public + "acl:accessTo <./>; acl:mode acl:Read.", false, Agent{}, "read"},
	} {
		if got := Allowed(parse(t, c.acl), "http://h.test/c/", c.inherited, c.who).String(); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

func TestModes(t *testing.T) {
	if got := Allow(Read|Write|Append, 0); got != `user="read write append",public=""` {
		t.Error(got)
	}
	if m := Read | Append; !m.Has(Read) || m.Has(Read|Write) || !m.Has(0) {
		t.Error(m)
	}
}

// Whatever a document says, an agent with a name may do what a stranger may, and who may write may append.
func FuzzAllowed(f *testing.F) {
	f.Add("<#o> a acl:Authorization; acl:agent <"+alice+">; acl:accessTo <./>; acl:mode acl:Write.", alice, app)
	f.Add("[] a acl:Authorization; acl:agentClass foaf:Agent; acl:origin <"+app+">; acl:default <./>; acl:mode acl:Read.", "", app)
	f.Fuzz(func(t *testing.T, doc, id, origin string) {
		base, err := url.Parse("http://h.test/c/.acl")
		if err != nil {
			t.Fatal(err)
		}
		var acl []rdf.Triple
		doc = "@prefix acl: <http://www.w3.org/ns/auth/acl#>. @prefix foaf: <http://xmlns.com/foaf/0.1/>. " + doc
		if rdf.Parse(rdf.MediaTurtle, []byte(doc), base, func(x rdf.Triple) { acl = append(acl, x) }) != nil {
			return
		}
		for _, inherited := range []bool{false, true} {
			stranger := Allowed(acl, "http://h.test/c/", inherited, Agent{})
			known := Allowed(acl, "http://h.test/c/", inherited, Agent{IDs: []string{id}, Origin: origin})
			if !known.Has(stranger) {
				t.Fatalf("an agent may do less, %q, than a stranger, %q", known, stranger)
			}
			if known.Has(Write) && !known.Has(Append) {
				t.Fatalf("%q %q", known, stranger)
			}
		}
	})
}
