package rules

import (
	"strconv"

	"fmt"

	"github.com/dreamlab-ai/agentinit/schema"
)

func hardwareRules() []Rule {
	return []Rule{
		{Code: "E006", Severity: schema.Error, Check: splattingWithoutCUDA,
			Doc:    `skills.spatial_and_3d.gaussian_splatting is on, but gpu.backend is not "local-cuda".`,
			Remedy: `Set gpu.backend = "local-cuda", or switch the skill off.`},
		{Code: "E007", Severity: schema.Error, Check: twoComfyUIs,
			Doc:    "skills.media.comfyui_builtin and integrations.comfyui_external.enabled are both on.",
			Remedy: "Switch one of them off."},
		{Code: "E008", Severity: schema.Error, Check: cudaOnARM,
			Doc:    `gpu.backend is "local-cuda" on an arm64 host.`,
			Remedy: "Use another backend, or an x86_64 host."},
		{Code: "E010", Severity: schema.Error, Check: headlessProfiles,
			Doc:    "desktop.enabled is on, but a profile of the workspace says headless_only = true.",
			Remedy: "Switch the desktop off, or remove the profile."},
		{Code: "E019", Severity: schema.Error, Check: cudaToolchainWithoutCUDA,
			Doc:    `toolchains.cuda is on, but gpu.backend is not "local-cuda".`,
			Remedy: `Set gpu.backend = "local-cuda", or switch the toolchain off.`},
	}
}

func localCUDA(d *schema.Document) bool { return d.Is("gpu.backend", "local-cuda") }

func splattingWithoutCUDA(d *schema.Document, _ Facts) []schema.Finding {
	const skill = "skills.spatial_and_3d.gaussian_splatting"
	if !d.On(skill) || localCUDA(d) {
		return nil
	}
	return one(shown(d, skill, skill+` = true needs gpu.backend = "local-cuda", and it is `+said(d, "gpu.backend"), `set gpu.backend = "local-cuda", or switch the skill off`))
}

func twoComfyUIs(d *schema.Document, _ Facts) []schema.Finding {
	const in, out = "skills.media.comfyui_builtin", "integrations.comfyui_external.enabled"
	if !d.On(in) || !d.On(out) {
		return nil
	}
	return one(shown(d, in, in+" and "+out+" exclude each other, and both are true", "switch one of them off"))
}

func cudaOnARM(d *schema.Document, f Facts) []schema.Finding {
	if !localCUDA(d) || f.Arch != "arm64" && f.Arch != "aarch64" {
		return nil
	}
	return one(shown(d, "gpu.backend", fmt.Sprintf(`gpu.backend = "local-cuda" is for x86_64, and this host is %s`, f.Arch), `use "ollama-cuda" or "none" here`))
}

func headlessProfiles(d *schema.Document, f Facts) (out []schema.Finding) {
	if !d.On("desktop.enabled") || f.Profiles == nil {
		return nil
	}
	for _, p := range f.Profiles() {
		if p.HeadlessOnly {
			out = append(out, shown(d, "desktop.enabled", "desktop.enabled = true, but the profile "+strconv.Quote(p.Dir)+" is headless_only", "switch the desktop off, or remove the profile"))
		}
	}
	return out
}

func cudaToolchainWithoutCUDA(d *schema.Document, _ Facts) []schema.Finding {
	if !d.On("toolchains.cuda") || localCUDA(d) {
		return nil
	}
	return one(shown(d, "toolchains.cuda", `[toolchains.cuda]=true needs [gpu.backend]="local-cuda", and it is `+said(d, "gpu.backend"), `set gpu.backend = "local-cuda", or switch the toolchain off`))
}
