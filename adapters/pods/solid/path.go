package solid

import (
	"net/url"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// resource is the place of a document or a container. Make it with parse, root, in or beside.
type resource struct {
	names     []string // decoded, from the root
	container bool
}

// maxName is the longest name of a document or container, in bytes. A file system has 255: there must be room for the ending
// ".meta.acl" of the name of an access list, and in typesDir for that of a temporary file (internal/safeopen).
const maxName = 215

// nameable tells whether a resource can have its last name, as long as it has the path of a pod.
func (r resource) nameable() bool {
	if r.isRoot() {
		return true
	}
	subject, _ := r.subject()
	return len(r.name()) <= maxName+len(".meta.acl") && (subject.isRoot() || len(subject.name()) <= maxName)
}

func root() resource { return resource{container: true} }

// parse reads the escaped path of a request. Only the last name of a path may be that of an auxiliary
// resource, and only of a document.
func parse(escaped string) (resource, error) {
	if err := adapters.CheckPodPath(escaped); err != nil {
		return resource{}, faulty(adapters.CodeValidation, "the %s", strings.Replace(adapters.AsError(err).Message, "path: ", "path ", 1))
	}
	if escaped == "/" {
		return root(), nil
	}
	r := resource{container: adapters.IsContainer(escaped)}
	segments := strings.Split(strings.Trim(escaped, "/"), "/")
	for i, segment := range segments {
		name, err := url.PathUnescape(segment)
		if err != nil {
			return resource{}, faulty(adapters.CodeValidation, "the path has a broken percent escape")
		}
		if adapters.PodAuxiliary(name) && (r.container || i < len(segments)-1) {
			return resource{}, faulty(adapters.CodeValidation, "a container must not have a name that ends with .acl or .meta")
		}
		r.names = append(r.names, name)
		if at := (resource{names: r.names, container: r.container || i < len(segments)-1}); !at.nameable() {
			return resource{}, faulty(adapters.CodeValidation, "the path has a name of more than %d bytes, the limit", maxName)
		}
	}
	return r, nil
}

func (r resource) isRoot() bool { return len(r.names) == 0 }

func (r resource) name() string { return r.names[len(r.names)-1] }

// path is the path with each name escaped once, as in the IRIs of this server.
func (r resource) path() string {
	var b strings.Builder
	for _, name := range r.names {
		b.WriteString("/" + url.PathEscape(name))
	}
	if r.container {
		b.WriteString("/")
	}
	return b.String()
}

// parent is the container of a resource; the root is its own.
func (r resource) parent() resource {
	return resource{names: r.names[:max(len(r.names)-1, 0)], container: true}
}

// in is the member of a container.
func (r resource) in(name string, container bool) resource {
	return resource{names: append(slices.Clip(r.names), name), container: container}
}

// beside is the auxiliary resource with that ending: inside a container, and beside a document.
func (r resource) beside(ending string) resource {
	if r.container {
		return r.in(ending, false)
	}
	return r.parent().in(r.name()+ending, false)
}

// auxiliaries are the auxiliary resources of a document or container.
func (r resource) auxiliaries() []resource {
	if !r.container && adapters.PodAuxiliary(r.name()) {
		return nil
	}
	return []resource{r.beside(".acl"), r.beside(".meta")}
}

// from are the containers in the path of a container, from the i-th on.
func (r resource) from(i int) []resource {
	var out []resource
	for ; i < len(r.names); i++ {
		out = append(out, resource{names: r.names[:i+1], container: true})
	}
	return out
}

// subject is the resource that an auxiliary one describes, or the resource itself. control tells that the
// resource is an access list, also one of an auxiliary resource.
func (r resource) subject() (subject resource, control bool) {
	if r.container || r.isRoot() || !adapters.PodAuxiliary(r.name()) {
		return r, false
	}
	name := r.name()
	for adapters.PodAuxiliary(name) {
		bare, acl := strings.CutSuffix(name, ".acl")
		control = control || acl
		name = strings.TrimSuffix(bare, ".meta")
	}
	if name == "" {
		return r.parent(), control
	}
	return r.parent().in(name, false), control
}
