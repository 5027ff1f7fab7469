package hardening_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

func harden(t *testing.T, text string) hardening.Applied {
	t.Helper()
	m, doc, findings := schema.Load("agentbox.toml", []byte(text))
	if m == nil {
		t.Fatal(findings)
	}
	return hardening.Harden(plan.View(m, doc, plan.Facts{}))
}

func TestBaseline(t *testing.T) {
	if got := harden(t, "").Effective.Tmpfs; len(got) != 2 {
		t.Errorf("a box that is no agentbox has the tmpfs %q; /var/run is a link to /run in its image", got)
	}
	a := harden(t, "[core]")
	p := a.Effective
	if p.User != "1000:1000" || !p.ReadOnly || !slices.Equal(p.CapDrop, []string{"ALL"}) || len(p.CapAdd) != 0 ||
		!slices.Equal(p.SecurityOpt, []string{"no-new-privileges:true", "seccomp=default"}) || len(p.Tmpfs) != 5 || p.PidsLimit != 4096 {
		t.Errorf("baseline %+v", p)
	}
	if len(a.Exceptions) != 0 || a.Sidecar != nil {
		t.Errorf("%+v", a)
	}
}

func TestMergeRules(t *testing.T) {
	a := harden(t, `
[desktop]
enabled = true
[skills.browser]
playwright = true
[toolchains]
code_server = true
[security.exceptions.desktop]
tmpfs = ["/tmp/.X11-unix", "/tmp:size=1G", "/run", "/tmp/.X11-unix/", "/tmp/.X11-unix:size=1M"]
reason = "a screen"
security_opt_override = ["seccomp=/etc/desktop.json", "label:disable"]
group_add = ["video"]
[security.exceptions.playwright]
cap_add = ["SYS_ADMIN"]
security_opt_override = ["seccomp=unconfined"]
group_add = ["video", "render"]
[security.exceptions.code-server]
writable_volumes = ["vv:/v"]
runtime_override = "kata"
`)
	p := a.Effective
	// Engines refuse two mounts at one path.
	if p.Tmpfs[0] != "/tmp:size=1G" || !strings.HasPrefix(p.Tmpfs[1], "/run:mode=") || strings.Join(p.Tmpfs[5:], " ") != "/tmp/.X11-unix:size=1M" {
		t.Errorf("tmpfs is not a union without repeats: %v", p.Tmpfs)
	}
	if !slices.Equal(p.GroupAdd, []string{"video", "render"}) || !slices.Equal(p.CapAdd, []string{"SYS_ADMIN"}) || !slices.Equal(p.WritableVolumes, []string{"vv:/v"}) {
		t.Errorf("%+v", p)
	}
	// The key seccomp gets the most permissive value. The other key of the baseline stays. A new
	// key is added.
	if want := []string{"no-new-privileges:true", "seccomp=unconfined", "label:disable"}; !slices.Equal(p.SecurityOpt, want) {
		t.Errorf("security_opt %v, want %v", p.SecurityOpt, want)
	}
	if p.Runtime != "kata" {
		t.Errorf("runtime %q", p.Runtime)
	}
	if len(a.Conflicts) != 1 || fmt.Sprint(a.Conflicts[0]) != "{seccomp [desktop playwright] [seccomp=/etc/desktop.json seccomp=unconfined] seccomp=unconfined}" {
		t.Errorf("conflicts %v", a.Conflicts)
	}
	if len(a.Exceptions) != 3 || a.Exceptions[0].Feature != "desktop" || a.Exceptions[0].Reason != "a screen" {
		t.Errorf("exceptions %+v", a.Exceptions)
	}
	if !slices.Equal(a.Baseline.SecurityOpt, []string{"no-new-privileges:true", "seccomp=default"}) || len(a.Baseline.Tmpfs) != 5 {
		t.Errorf("the merge changed the baseline: %+v", a.Baseline)
	}
}

func TestInheritedBlocksComeFirst(t *testing.T) {
	a := harden(t, `
[gpu]
backend = "local-cuda"
[skills.spatial_and_3d]
gaussian_splatting = true
[security.exceptions.gpu-cuda]
runtime = "nvidia"
device_requests = [{ driver = "nvidia", count = -1, capabilities = [["gpu"]] }]
security_opt_override = ["seccomp=/base.json"]
[security.exceptions.gaussian-splatting]
inherits = ["gpu-cuda", "gaussian-splatting", "desktop"]
security_opt_override = ["seccomp=unconfined"]
`)
	for _, e := range a.Exceptions {
		if e.Feature == "gaussian-splatting" {
			if e.Delta.Runtime != "nvidia" || !slices.Equal(e.Delta.SecurityOpt, []string{"seccomp=unconfined"}) || len(e.Delta.DeviceRequests) != 1 {
				t.Errorf("delta %+v", e.Delta)
			}
			return
		}
	}
	t.Errorf("exceptions %+v", a.Exceptions)
}

// A block whose feature is off adds no privilege. A privilege for the model server does not apply
// to the box.
func TestScopeOfExceptions(t *testing.T) {
	off := harden(t, "[security.exceptions.playwright]\ncap_add = ['SYS_ADMIN']")
	if len(off.Effective.CapAdd) != 0 || len(off.Exceptions) != 0 {
		t.Errorf("a feature that is off: %+v", off)
	}
	rocm := harden(t, "[gpu]\nbackend = 'ollama-rocm'\n[security.exceptions.gpu-rocm]\ndevices = ['/dev/kfd', '/dev/extra']\nsecurity_opt_override = ['label=disable']")
	if len(rocm.Effective.Devices) != 0 || len(rocm.Effective.SecurityOpt) != 2 {
		t.Errorf("the box got %+v", rocm.Effective)
	}
	if !slices.Equal(rocm.Sidecar.Devices, []string{"/dev/kfd", "/dev/dri", "/dev/extra"}) || !slices.Contains(rocm.Sidecar.SecurityOpt, "label=disable") || rocm.Exceptions[0].Target != "sidecar" {
		t.Errorf("the model server got %+v", rocm.Sidecar)
	}
}

// Each capability is there once, in the one form that all engines know.
func TestCapabilitiesHaveOneForm(t *testing.T) {
	a := harden(t, "[skills.browser]\nplaywright = true\n[security.exceptions.playwright]\ncap_add = ['CAP_SYS_ADMIN', 'sys_admin', 'SYS_ADMIN', 'cap_net_raw', 'ALL', 'other']\n")
	if want := []string{"SYS_ADMIN", "NET_RAW", "ALL", "other"}; !slices.Equal(a.Effective.CapAdd, want) {
		t.Errorf("cap_add %v, want %v", a.Effective.CapAdd, want)
	}
}
