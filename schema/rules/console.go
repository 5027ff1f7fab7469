package rules

import (
	"fmt"

	"github.com/dreamlab-ai/agentinit/schema"
)

// consoleRules are about the API keys that admit clients in addition to the management key.
func consoleRules() []Rule {
	return []Rule{
		{Code: "E112", Severity: schema.Error, Check: keyWithoutPlace,
			Doc:    "A key of [api.keys] has neither env nor file, or both: agentinit would not know where it is.",
			Remedy: "Write exactly one of env and file."},
		{Code: "W107", Severity: schema.Warning, Check: consoleWithoutListener,
			Doc:    "supervisor.console is on, but supervisor.listen is off: no browser can reach it.",
			Remedy: `Give supervisor.listen an address such as "127.0.0.1:9090", or turn the console off.`},
	}
}

func keyWithoutPlace(d *schema.Document, _ Facts) (out []schema.Finding) {
	keys := d.Manifest().API.Keys
	for _, name := range d.Keys("api", "keys") {
		k := keys[name]
		if (k.Env == "") == (k.File == "") {
			out = append(out, atKeys(d, []string{"api", "keys", name},
				fmt.Sprintf("api.keys.%s must have exactly one of env and file", name), `for example env = "CONSOLE_KEY"`))
		}
	}
	return out
}

func consoleWithoutListener(d *schema.Document, _ Facts) []schema.Finding {
	m := d.Manifest()
	if m.Supervisor.Listen != "off" || m.Supervisor.Console == schema.ConsoleOff || m.Supervisor.Console == "" {
		return nil
	}
	return []schema.Finding{at(d, "supervisor.console", "supervisor.console is on, but supervisor.listen is off", "write supervisor.listen, or console = false")}
}
