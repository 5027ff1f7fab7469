package console_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// road is the network between a browser and a box: it can be cut and held up.
type road struct {
	to string

	// held is locked while nothing gets through to the browser.
	held sync.RWMutex

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

// openRoad returns a road to a box, and the address that the browser is to use.
func openRoad(t *testing.T, base string) (r *road, address string) {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &road{to: u.Host, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close(); r.cut() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.carry(c)
		}
	}()
	return r, "http://" + l.Addr().String()
}

func (r *road) carry(browser net.Conn) {
	defer browser.Close()
	box, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer box.Close()
	r.mu.Lock()
	down := r.down
	r.conns[browser], r.conns[box] = true, true
	r.mu.Unlock()
	if down {
		return
	}
	go func() {
		_, _ = io.Copy(box, browser) // ends with either side
		box.Close()
	}()
	buf := make([]byte, 4096)
	for {
		n, err := box.Read(buf)
		if err != nil {
			return
		}
		r.held.RLock()
		_, err = browser.Write(buf[:n])
		r.held.RUnlock()
		if err != nil {
			return
		}
	}
}

// cut breaks all connections, and every new one at once.
func (r *road) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = true
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

func (r *road) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// change asks the box for a change past the road.
func change(t *testing.T, base, path string) {
	t.Helper()
	req, err := http.NewRequest("POST", base+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s %s", path, resp.Status, text)
	}
}

const (
	connected    = `document.getElementById("box").textContent.includes("ready")`
	disconnected = `document.getElementById("box").textContent.includes("Not connected")`
)

// Without its connection the page says so. Afterwards it shows what has changed
// meanwhile, and the output from before is still there.
func TestReconnects(t *testing.T) {
	base := box(t, "true")
	r, address := openRoad(t, base)
	ctx := browser(t)
	login(t, ctx, address, adminKey)
	var first string
	do(t, ctx, "output", open("#/program/web"), until(connected+` && document.querySelectorAll(".log div").length > 1`),
		chromedp.Evaluate(`document.querySelector(".log div").textContent`, &first))
	r.cut()
	do(t, ctx, "cut", until(disconnected))
	change(t, base, "/v1/programs/worker:1/stop")
	r.mend()
	var now string
	do(t, ctx, "mended", until(connected), chromedp.Evaluate(`document.querySelectorAll(".log div").length`, nil),
		until(`[...document.querySelectorAll(".log div")].at(-1).textContent !== ""`),
		chromedp.Evaluate(`document.querySelector(".log div").textContent`, &now))
	if now != first {
		t.Errorf("the output begins with %q, and with %q before the break", now, first)
	}
	do(t, ctx, "changes", open("#/program/worker:1"), until(`document.querySelector(".state")?.textContent === "STOPPED"`))
}

// A browser that does not read for a while gets what is newest, not all that it missed.
func TestLaggingBrowser(t *testing.T) {
	base, _ := start(t, "true", `
[supervisor]
listen = %q
metrics_listen = "off"
console = %s
[programs.calm]
command = ["/bin/sleep", "1000"]
[programs.burst]
command = ["/bin/sh", "-c", 'i=0; while [ $i -lt 60000 ]; do echo "line $i, which is not a short one at all"; i=$((i+1)); done; echo the last one']
type = "oneshot"
autostart = false
`)
	r, address := openRoad(t, base)
	ctx := browser(t)
	login(t, ctx, address, adminKey)
	do(t, ctx, "logs", open("#/logs"), until(connected))
	r.held.Lock()
	change(t, base, "/v1/programs/burst/start")
	r.held.Unlock()
	var count int
	do(t, ctx, "the end", until(`document.querySelector(".log").textContent.includes("the last one")`),
		chromedp.Evaluate(`document.querySelectorAll(".log div").length`, &count))
	if count > 2000 {
		t.Errorf("%d lines are on the page", count)
	}
	do(t, ctx, "state", open("#/program/burst"), until(connected+` && document.querySelector(".state")?.textContent === "COMPLETED"`))
}

// Times are by the clock of the box, whatever the browser's clock says.
func TestClockSkew(t *testing.T) {
	base := box(t, "true")
	for _, skew := range []time.Duration{26 * time.Hour, -26 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			ctx := browser(t)
			script := fmt.Sprintf(`{const real = Date.now; Date.now = () => real() + %d;}`, skew.Milliseconds())
			do(t, ctx, "clock", chromedp.ActionFunc(func(ctx context.Context) error {
				_, err := page.AddScriptToEvaluateOnNewDocument(script).Do(ctx)
				return err
			}))
			login(t, ctx, base, adminKey)
			var now int64
			do(t, ctx, "time", chromedp.Evaluate(`Date.now()`, &now), until(`/^[1-9]\d*(s|m\d+s)$/.test(document.querySelector("tbody tr td:nth-of-type(6)")?.textContent)`))
			if off := time.UnixMilli(now).Sub(time.Now()); (off - skew).Abs() > time.Hour {
				t.Errorf("the browser's clock is off by %v, not by %v: nothing was tested", off, skew)
			}
		})
	}
}

func TestTenThousandPrograms(t *testing.T) {
	base, _ := start(t, "true", `
[supervisor]
listen = %q
metrics_listen = "off"
console = %s
[programs.calm]
command = ["/bin/sleep", "1000"]
[programs.crowd]
command = ["/bin/sleep", "1000"]
instances = 10000
autostart = false
`)
	ctx := browser(t)
	login(t, ctx, base, adminKey)
	do(t, ctx, "list", until(`document.body.innerText.includes("250 of 10001") && document.querySelectorAll("tbody tr").length === 250`),
		chromedp.SendKeys(`input[type="search"]`, "crowd:9999", chromedp.ByQuery), until(`document.querySelectorAll("tbody tr").length === 1`))
	for _, p := range pages {
		if p.name != "programs" && !strings.HasPrefix(p.hash, "#/program/") { // this box has other programs
			do(t, ctx, p.name, open(p.hash), until(fmt.Sprintf(`document.querySelector("main h2").textContent !== "Programs" && document.querySelector(".error:not(:empty)") === null && %s`, connected)))
		}
	}
	var rows int
	do(t, ctx, "without JavaScript", chromedp.Evaluate(`fetch("/ui/").then((r) => r.text()).then((text) => { window.rows = text.split("<tr><th scope=\"row\"").length - 1; })`, nil),
		until(`window.rows > 0`), chromedp.Evaluate(`window.rows`, &rows))
	if rows != 10001 {
		t.Errorf("without JavaScript the page has %d rows", rows)
	}
}

// A wrong key says so; a page whose session has ended becomes the login form.
func TestLoginAndExpiry(t *testing.T) {
	ctx, base := browser(t), box(t, "true")
	do(t, ctx, "wrong key", chromedp.Navigate(base+"/ui/"), chromedp.SendKeys("#key", "wrong\r", chromedp.ByID),
		chromedp.WaitVisible(`//*[@role="alert"][contains(., "not known")]`, chromedp.BySearch))
	login(t, ctx, base, adminKey)
	do(t, ctx, "expiry", until(connected), network.ClearBrowserCookies(), chromedp.WaitVisible("#key", chromedp.ByID))
}
