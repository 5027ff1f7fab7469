package rules

import (
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/capability"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// exceptionGate is a name of [security.exceptions] with its feature.
type exceptionGate struct {
	name   string
	key    string // the key that switches the feature on
	when   string // the condition under which it is on, as text
	active bool
}

// exceptionGates are the exceptions of the feature catalogue.
func exceptionGates(d *schema.Document) (gates []exceptionGate) {
	view := catalog.View{Manifest: d.Manifest()}
	for _, e := range catalog.Load().Exceptions {
		gates = append(gates, exceptionGate{e.Name, catalog.Keys(e.When)[0], catalog.Describe(e.When), view.Holds(e.When)})
	}
	return gates
}

func securityRules() []Rule {
	return []Rule{
		{Code: "E020", Severity: schema.Error, Check: blocksWithoutFeature,
			Doc:    "[security.exceptions] has a block whose feature is not active.",
			Remedy: "Switch the feature on, or remove the block."},
		{Code: "E021", Severity: schema.Error, Check: featuresWithoutBlock,
			Doc:    "A feature that needs more than the baseline is active without its block in [security.exceptions].",
			Remedy: "Declare the block; an empty one will do."},
		{Code: "W021", Severity: schema.Warning, Check: privilegedExceptions,
			Doc:    "An active exception adds privilege (cap_add, devices, seccomp=unconfined), or two of them set the same security option to different values, and security.audit_acknowledged is not on.",
			Remedy: "Look at the additions and set security.audit_acknowledged = true."},
		{Code: "W104", Severity: schema.Warning, Check: emptyInheritance,
			Doc:    "inherits of a security exception names a block that is not declared, or itself. Such a name has no effect.",
			Remedy: "Declare the block, or take the name out."},
	}
}

func blocksWithoutFeature(d *schema.Document, _ Facts) (out []schema.Finding) {
	gates := exceptionGates(d)
	for _, name := range d.Keys("security", "exceptions") {
		active, when := false, ""
		for _, g := range gates {
			if g.name == name {
				active, when = g.active, g.when
			}
		}
		if active {
			continue
		}
		keys := []string{"security", "exceptions", name}
		hint := "remove the block, or switch on " + when
		if when == "" {
			hint = "no feature has this name"
		}
		out = append(out, atKeys(d, keys, schema.Path(keys...)+" is declared, but its feature is not active", hint))
	}
	return out
}

func featuresWithoutBlock(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, g := range exceptionGates(d) {
		keys := []string{"security", "exceptions", g.name}
		if _, declared := d.At(keys...); declared || !g.active {
			continue
		}
		f := at(d, g.key, g.when+" is active without "+schema.Path(keys...), "declare ["+schema.Path(keys...)+"]; an empty block will do")
		f.Path = schema.Path(keys...)
		out = append(out, f)
	}
	return out
}

func emptyInheritance(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, name := range d.Keys("security", "exceptions") {
		for _, inherited := range exceptionList(d, name, "inherits") {
			if _, declared := d.At("security", "exceptions", inherited); declared && inherited != name {
				continue
			}
			keys := []string{"security", "exceptions", name, "inherits"}
			out = append(out, atKeys(d, keys, schema.Path(keys...)+" names "+schema.Quote(inherited)+", which is not another declared exception",
				"declare ["+schema.Path("security", "exceptions", inherited)+"], or take the name out"))
		}
	}
	return out
}

// activeExceptions are the declared blocks whose feature is on.
func activeExceptions(d *schema.Document) (names []string) {
	for _, g := range exceptionGates(d) {
		if _, declared := d.At("security", "exceptions", g.name); declared && g.active {
			names = append(names, g.name)
		}
	}
	return names
}

func exceptionList(d *schema.Document, name, key string) []string {
	v, _ := d.At("security", "exceptions", name, key)
	return words(v)
}

func privilegedExceptions(d *schema.Document, _ Facts) (out []schema.Finding) {
	if d.On("security.audit_acknowledged") {
		return nil
	}
	const hint = "set security.audit_acknowledged = true once this is wanted"
	type setting struct{ exception, value string }
	options := map[string]setting{}
	for _, name := range activeExceptions(d) {
		keys := []string{"security", "exceptions", name}
		if added := privileges(d, name); added != nil {
			out = append(out, atKeys(d, keys, schema.Path(keys...)+" adds privilege: "+strings.Join(added, "; "), hint))
		}
		for _, o := range exceptionList(d, name, "security_opt_override") {
			key, value := catalog.SecurityOption(o)
			first, known := options[key]
			if known && first.value != value && first.exception != name {
				out = append(out, atKeys(d, append(keys, "security_opt_override"),
					schema.Path(keys...)+" and "+schema.Path("security", "exceptions", first.exception)+" set the security option "+
						schema.Quote(key)+" to different values; the most permissive one wins", hint))
			}
			if !known {
				options[key] = setting{name, value}
			}
		}
	}
	return out
}

// privileges lists the privileges of an exception that W021 reports, by key and each once.
func privileges(d *schema.Document, name string) (added []string) {
	for _, key := range []string{"cap_add", "devices"} {
		v, _ := d.At("security", "exceptions", name, key)
		list, _ := v.([]any)
		var values []string
		known := map[string]bool{}
		for _, e := range list {
			text := schema.Describe(e)
			same := text
			if word, isText := e.(string); isText && key == "cap_add" { // CAP_SYS_ADMIN is SYS_ADMIN
				if n, ok := capability.Number(word); ok {
					same = capability.Name(n)
				}
			}
			if !known[same] {
				values = append(values, text)
			}
			known[same] = true
		}
		if values != nil {
			added = append(added, key+" "+strings.Join(values, ", "))
		}
	}
	for _, o := range exceptionList(d, name, "security_opt_override") {
		if key, value := catalog.SecurityOption(o); key == "seccomp" && value == "unconfined" {
			return append(added, "security_opt_override "+schema.Quote(o))
		}
	}
	return added
}
