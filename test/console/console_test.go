// Package console_test drives the web console of a real box in a real browser.
// It is a module of its own, so that the browser's driver is no dependency of the
// product.
package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

const (
	adminKey = "console-test-management-key"
	viewKey  = "console-test-viewer-key"
)

// hostile is what a program may say of itself: none of it may become markup, run,
// or reach the terminal.
const hostile = `<img src=x onerror="window.broken=1"><script>window.broken=1</script>`

const manifest = `
[supervisor]
listen = %s
metrics_listen = "off"
console = %s
[api.keys.watcher]
role = "viewer"
env = "WATCH_KEY"
[programs.db]
command = ["/bin/sleep", "1000"]
required = true
[programs.crash]
command = ["/bin/sh", "-c", "echo going down >&2; exit 3"]
restart_limit = { count = 1, window = "1m" }
backoff = { initial = "10ms" }
[programs.web]
command = ["/bin/sh", "-c", 'while :; do echo %[3]q; printf "\033[31mred\033[0m \033]0;title\007\n"; sleep 1; done']
needs = ["db"]
[programs.worker]
command = ["/bin/sleep", "500"]
instances = 3
needs = ["db", "web:started"]
`

// box starts agentinit with the manifest of most tests and returns the address of
// its management listener.
func box(t *testing.T, console string) (base string) {
	t.Helper()
	base, _ = start(t, console, fmt.Sprintf(manifest, "%q", "%s", hostile))
	return base
}

// start starts agentinit with a manifest that has places for the address of the
// management listener and the console.
func start(t testing.TB, console, manifest string) (base string, pid int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir, err := os.MkdirTemp("", "console")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "agentbox.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, manifest, address, console), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../bin/agentinit", "--root", dir, "--manifest", file)
	cmd.Env = append(os.Environ(), "MANAGEMENT_API_KEY="+adminKey, "WATCH_KEY="+viewKey)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the box ended with %v\n%s", err, log.String())
		}
		os.RemoveAll(dir)
	})
	base = "http://" + address
	deadline := time.Now().Add(30 * time.Second)
	for {
		resp, err := http.Get(base + "/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return base, cmd.Process.Pid
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the box is not ready: %v\n%s", err, log.String())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// browser is one tab of a new headless Chromium.
func browser(t testing.TB) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs root once: Debian's chromium is not installed (.ci/deps e2e installs it)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func do(t testing.TB, ctx context.Context, what string, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var page string
		_ = chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &page)) // for the message alone
		t.Fatalf("%s: %v\n%.2000s", what, err, page)
	}
}

func login(t testing.TB, ctx context.Context, base, key string) {
	t.Helper()
	do(t, ctx, "login", chromedp.Navigate(base+"/ui/"), chromedp.SendKeys("#key", key+"\r", chromedp.ByID),
		chromedp.WaitReady("nav a", chromedp.ByQuery))
}

// until waits for a condition of the page.
func until(condition string) chromedp.Action {
	return chromedp.Poll(condition, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(20*time.Second))
}

// open goes to a page of the console.
func open(hash string) chromedp.Action {
	return chromedp.Evaluate(fmt.Sprintf(`location.hash = %q`, hash), nil)
}

// screenshots keeps a picture of the page below dist/console, in light, dark and
// at phone width.
func screenshots(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := filepath.Join("..", "..", "dist", "console")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, look := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1280}, {"dark", "dark", 1280}, {"phone", "light", 390}} {
		var png []byte
		do(t, ctx, "screenshot", chromedp.EmulateViewport(look.width, 900),
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}),
			chromedp.FullScreenshot(&png, 100))
		if err := os.WriteFile(filepath.Join(dir, name+"-"+look.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	do(t, ctx, "viewport", chromedp.EmulateViewport(1280, 900))
}

// pages is every page with a condition that holds once it shows what it is for.
var pages = []struct{ name, hash, shows string }{
	{"programs", "#/", `document.querySelectorAll("tbody tr").length === 6 && document.querySelector(".FATAL") !== null && document.querySelector("main").innerText.includes("6 programs; 1 FATAL")`},
	{"fatal", "#/program/crash", `[...document.querySelectorAll("main p")].some((p) => p.innerText.startsWith("Next: it stays FATAL"))`},
	{"program", "#/program/web", `document.querySelectorAll(".log div").length > 1 && document.body.innerText.includes("RUNNING")`},
	{"logs", "#/logs", `document.querySelectorAll(".log div").length > 1`},
	{"events", "#/events", `document.body.innerText.includes("ProgramStateChanged")`},
	{"boot", "#/boot", `document.querySelectorAll("svg .bar").length > 5`},
	{"graph", "#/graph", `document.querySelectorAll("svg .node").length === 6 && document.querySelectorAll("svg .edge").length === 7`},
	{"usage", "#/usage", `document.querySelectorAll("svg .line").length >= 2`},
	{"slots", "#/slots", `document.body.innerText.includes("beads")`},
	{"manifest", "#/manifest", `document.body.innerText.includes("api.keys.watcher.role")`},
}

func TestPages(t *testing.T) {
	ctx, base := browser(t), box(t, "true")
	login(t, ctx, base, adminKey)
	for _, p := range pages {
		var unnamed int
		do(t, ctx, p.name, open(p.hash), until(p.shows),
			chromedp.Evaluate(`document.querySelectorAll("table:not([aria-label])").length`, &unnamed))
		if unnamed > 0 {
			t.Errorf("%s: a screen reader has no name for %d tables", p.name, unnamed)
		}
		screenshots(t, ctx, p.name)
	}
	var broken bool
	do(t, ctx, "injection", open("#/program/web"), until(`document.querySelector(".log").innerText.includes("onerror")`),
		chromedp.Evaluate(`window.broken !== undefined || document.querySelector("main img, main script") !== null`, &broken))
	if broken {
		t.Error("a line of a program's output became markup")
	}
}

// The negative twin: the check above sees markup where there is some.
func TestInjectionIsSeen(t *testing.T) {
	ctx, base := browser(t), box(t, "true")
	login(t, ctx, base, adminKey)
	var seen bool
	do(t, ctx, "injection", chromedp.Evaluate(`document.querySelector("main").insertAdjacentHTML("beforeend", "<img src=x>")`, nil),
		chromedp.Evaluate(`document.querySelector("main img, main script") !== null`, &seen))
	if !seen {
		t.Error("markup in the page is not seen")
	}
	var ran bool
	do(t, ctx, "policy", chromedp.Evaluate(`{const s = document.createElement("script"); s.textContent = "window.broken = 1"; document.body.append(s); window.broken === 1}`, &ran))
	if ran {
		t.Error("the content security policy lets an inline script run")
	}
}

func TestOperatorActs(t *testing.T) {
	ctx, base := browser(t), box(t, "true")
	login(t, ctx, base, adminKey)
	do(t, ctx, "stop", open("#/"), until(`document.querySelector('[aria-label="stop web"]') !== null`),
		chromedp.Evaluate(`document.querySelector('[aria-label="stop web"]').click()`, nil), until(`document.getElementById("ask").open`),
		chromedp.Evaluate(`document.getElementById("ask-yes").click()`, nil), until(`document.querySelector('[aria-label="start web"]') !== null`),
		chromedp.Evaluate(`document.querySelector('[aria-label="start web"]').click()`, nil), until(`document.querySelector('[aria-label="stop web"]') !== null`))
	do(t, ctx, "apply", open("#/manifest"), until(`[...document.querySelectorAll("button")].some((b) => b.textContent.startsWith("Apply"))`),
		chromedp.Evaluate(`[...document.querySelectorAll("button")].find((b) => b.textContent.startsWith("Apply")).click()`, nil),
		until(`document.getElementById("ask").open && document.getElementById("ask").innerText.includes("Nothing would change")`),
		chromedp.Evaluate(`document.getElementById("ask-yes").click()`, nil), until(`document.body.innerText.includes("Applied.")`))
}

// A schedule can be run at once, besides its times.
func TestRunOfASchedule(t *testing.T) {
	base, _ := start(t, "true", `
[supervisor]
listen = %q
metrics_listen = "off"
console = %s
[programs.nightly]
command = ["/bin/echo", "good night"]
type = "schedule"
schedule = "0 3 * * *"
`)
	ctx := browser(t)
	login(t, ctx, base, adminKey)
	do(t, ctx, "run", until(`document.querySelector('[aria-label="run nightly"]') !== null && document.querySelector("td .SCHEDULED") !== null`),
		chromedp.Evaluate(`document.querySelector('[aria-label="run nightly"]').click()`, nil),
		open("#/program/nightly"), until(`document.querySelector(".log").textContent.includes("good night")`))
}

// A box with an identity shows its relays and its mailbox.
func TestMeshOfTheBox(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	l.Close()
	base, _ := start(t, "true", `
[supervisor]
listen = %q
metrics_listen = "off"
console = %s
[federation]
mode = "standalone"
[sovereign_mesh]
enabled = true
[sovereign_mesh.relay]
enabled = true
port = `+port+`
[security.exceptions.nostr-relay]
`)
	ctx := browser(t)
	login(t, ctx, base, adminKey)
	do(t, ctx, "mesh", open("#/slots"), until(`document.querySelector('table[aria-label="Relays"] .good')?.textContent === "connected" && document.body.innerText.includes("npub1")`))
	screenshots(t, ctx, "mesh")
}

func TestViewerAndReadOnlyOnlyLook(t *testing.T) {
	for _, c := range []struct{ name, console, key string }{{"viewer", "true", viewKey}, {"read-only", `"read-only"`, adminKey}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, base := browser(t), box(t, c.console)
			login(t, ctx, base, c.key)
			var status int
			do(t, ctx, "stop", until(`document.querySelectorAll("tbody tr").length === 6`),
				chromedp.Poll(`fetch("/v1/programs/web/stop", {method: "POST", body: "{}", headers: {"Agentbox-Console": localStorage.getItem("agentbox-console-key")}}).then((r) => r.status)`, &status))
			if status != http.StatusForbidden {
				t.Errorf("a session that may only look got %d", status)
			}
			var buttons int
			do(t, ctx, "buttons", chromedp.Evaluate(`document.querySelectorAll('main button').length`, &buttons))
			if buttons != 0 {
				t.Errorf("%d buttons for one who may change nothing", buttons)
			}
		})
	}
}

func TestWithoutJavaScript(t *testing.T) {
	ctx, base := browser(t), box(t, "true")
	do(t, ctx, "scripts off", emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(base+"/ui/"), chromedp.SendKeys("#key", adminKey, chromedp.ByID),
		chromedp.Submit("#key", chromedp.ByID), chromedp.WaitVisible("table", chromedp.ByQuery))
	var text string
	do(t, ctx, "text", chromedp.Text("main", &text, chromedp.ByQuery))
	if !strings.Contains(text, "JavaScript is off") || !strings.Contains(text, "worker:2") {
		t.Errorf("without JavaScript the page says\n%s", text)
	}
}

// A wrong key, a request from another site, and a session that has ended.
func TestSessionsAreRefused(t *testing.T) {
	base := box(t, "true")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	session := "" // the key of the session
	post := func(path, body, origin string, cookies []*http.Cookie) *http.Response {
		t.Helper()
		req, err := http.NewRequest("POST", base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		for _, c := range cookies {
			req.AddCookie(c)
		}
		req.Header.Set("Agentbox-Console", session)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	if resp := post("/ui/login", "key=wrong", base, nil); resp.StatusCode != 401 {
		t.Errorf("a wrong key got %d", resp.StatusCode)
	}
	if resp := post("/ui/login", "key="+adminKey, "http://evil.example", nil); resp.StatusCode != 403 || len(resp.Cookies()) > 0 {
		t.Errorf("a login from another site got %d", resp.StatusCode)
	}
	in := post("/ui/login", "key="+adminKey, base, nil)
	cookies := in.Cookies()
	if in.StatusCode != 303 || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode {
		t.Fatalf("the login got %d and %v", in.StatusCode, cookies)
	}
	if resp := post("/v1/programs/db/restart", "", base, cookies); resp.StatusCode != 401 {
		t.Errorf("a restart with the cookie alone, which servers on other ports get, too, got %d", resp.StatusCode)
	}
	_, session, _ = strings.Cut(in.Header.Get("Location"), "#key=")
	for _, origin := range []string{"", "null", "http://evil.example", "http://localhost:1"} {
		if resp := post("/v1/programs/db/restart", "", origin, cookies); resp.StatusCode != 401 {
			t.Errorf("a restart from origin %q got %d", origin, resp.StatusCode)
		}
	}
	if resp := post("/v1/programs/db/restart", "", base, cookies); resp.StatusCode != 200 {
		t.Errorf("a restart from the console got %d", resp.StatusCode)
	}
	post("/ui/logout", "", base, cookies)
	if resp := post("/v1/programs/db/restart", "", base, cookies); resp.StatusCode != 401 {
		t.Errorf("a restart after the logout got %d", resp.StatusCode)
	}
}

func TestOffByDefault(t *testing.T) {
	base := box(t, "false")
	resp, err := http.Get(base + "/ui/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var problem struct{ Code string }
	if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || resp.StatusCode != 404 {
		t.Errorf("without a console /ui/ is %d, %v", resp.StatusCode, err)
	}
}
