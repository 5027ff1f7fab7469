package rules

import (
	"regexp"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/schema"
)

func credentialRules() []Rule {
	return []Rule{
		{Code: "W040", Severity: schema.Warning, Check: perProvider(oauthIgnored),
			Doc:    `An enabled provider says auth_mode = "oauth", but only anthropic, openai and zai honour it.`,
			Remedy: `Use auth_mode = "api_key" and set the variable.`},
		{Code: "E017", Severity: schema.Error, Check: perProvider(variableMissing),
			Doc:    `The variable named by env_var of an enabled provider is not set, and the provider has no login of its own (auth_mode = "oauth" of anthropic, openai, zai).`,
			Remedy: "Set the variable in the environment, or disable the provider."},
		{Code: "E018", Severity: schema.Error, Check: perProvider(placeholderValue),
			Doc:    "The variable of an enabled provider holds a placeholder such as change-this, your_key_here, sk-xxx, <your token>, PLACEHOLDER or TODO.",
			Remedy: "Put the real credential into the variable."},
		{Code: "E014", Severity: schema.Error, Check: telegramVariables,
			Doc:    "sovereign_mesh.telegram_mirror is on, but CTM_BOT_TOKEN or CTM_TELEGRAM_CHAT_ID is not set; one finding for each.",
			Remedy: "Set both variables, or switch the mirror off."},
	}
}

// provider is one enabled entry of [providers].
type provider struct {
	name     string
	variable string // empty if env_var is absent or not a string
	oauth    bool
	capable  bool
}

// where describes the provider and its variable.
func (p provider) where() string {
	switch {
	case p.variable == "":
		return schema.Path("providers", p.name) + " (without env_var)"
	case !schema.ShownVariable(p.variable):
		return schema.Path("providers", p.name) + " (the value of env_var is not shown, because it can be the credential)"
	}
	return schema.Path("providers", p.name) + " (" + schema.Quote(p.variable) + ")"
}

// perProvider runs a check for every enabled provider, in document order.
func perProvider(check func(provider, Facts) (message, hint string)) func(*schema.Document, Facts) []schema.Finding {
	return func(d *schema.Document, f Facts) (out []schema.Finding) {
		for _, name := range d.Keys("providers") {
			v, _ := d.At("providers", name)
			t, _ := v.(map[string]any)
			if t["enabled"] != true {
				continue
			}
			p := provider{name: name, oauth: t["auth_mode"] == "oauth", capable: name == "anthropic" || name == "openai" || name == "zai"}
			p.variable, _ = t["env_var"].(string)
			if message, hint := check(p, f); message != "" {
				out = append(out, atKeys(d, []string{"providers", name, "env_var"}, message, hint))
			}
		}
		return out
	}
}

func oauthIgnored(p provider, _ Facts) (string, string) {
	if !p.oauth || p.capable {
		return "", ""
	}
	return p.where() + ` has auth_mode = "oauth", which only anthropic, openai and zai honour`, `use auth_mode = "api_key"`
}

func variableMissing(p provider, f Facts) (string, string) {
	if f.set(p.variable) || p.oauth && p.capable {
		return "", ""
	}
	return p.where() + " is enabled, but its variable is not set", "set the variable, or disable the provider"
}

// placeholder matches a value that is still a placeholder as a whole.
var placeholder = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^(?:change[-_]?this|your[-_]?key[-_]?here|sk[-_]?x{3,}|AKIA[A-Z0-9]{12}EXAMPLE|<[^>]+>|PLACEHOLDER|TODO)$`)
})

func placeholderValue(p provider, f Facts) (string, string) {
	v := f.value(p.variable)
	if v == "" || !placeholder().MatchString(strings.TrimSpace(v)) {
		return "", ""
	}
	return p.where() + ": the variable holds a placeholder", "put the real credential into the variable"
}

func telegramVariables(d *schema.Document, f Facts) (out []schema.Finding) {
	const key = "sovereign_mesh.telegram_mirror"
	if !d.On(key) {
		return nil
	}
	for _, v := range []string{"CTM_BOT_TOKEN", "CTM_TELEGRAM_CHAT_ID"} {
		if !f.set(v) {
			out = append(out, shown(d, key, key+" = true needs the variable "+v, "set it, or switch the mirror off"))
		}
	}
	return out
}
