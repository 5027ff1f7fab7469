package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// This file has what the image build needs of agentctl: the catalogue as data, and whether a
// manifest is valid for a box on another machine or system.

func newConfigCatalogue(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "catalogue",
		Short: "Print the feature catalogue as JSON",
		Long: `Print the programs, artifacts and settings that each feature of a manifest adds,
with the keys of catalog.toml.
"defaults" is the value of every manifest path that the catalogue names, as an
empty manifest has it. The Nix build reads this as nix/catalogue.json.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			out, err := catalog.Load().JSON()
			if err != nil {
				return failed(err)
			}
			return c.write(out)
		},
	}
}

// architectures are the systems that boxes are built for, by Nix's name, with Go's name of the
// processor.
var architectures = map[string]string{"x86_64-linux": "amd64", "aarch64-linux": "arm64"}

// ofThisMachine are the codes about the machine on which agentctl runs: its credentials,
// environment, files and profiles. The plan's E120 and E127 are among them.
var ofThisMachine = slices.DeleteFunc(append(slices.Clone(notHere), "E120", "E127"), func(code string) bool { return code == "E008" })

// checkSystem refuses the name of a system for which there are no boxes.
func checkSystem(name string) error {
	if _, ok := architectures[name]; !ok {
		return usageError("unknown system %q: %s", name, strings.Join(slices.Sorted(maps.Keys(architectures)), " or "))
	}
	return nil
}

// validateHereOr checks a manifest for this machine, or for the system in --system.
func (c *cli) validateHereOr(system, name string) (rules.Result, error) {
	if system == "" {
		return c.validate(name, c.ruleFacts(), c.planFacts()), nil
	}
	if err := checkSystem(system); err != nil {
		return rules.Result{}, err
	}
	result := c.validate(name, rules.Facts{Arch: architectures[system]}, plan.Facts{Version: version, System: system})
	result.Findings = slices.DeleteFunc(result.Findings, func(f schema.Finding) bool { return slices.Contains(ofThisMachine, f.Code) })
	return result, nil
}
