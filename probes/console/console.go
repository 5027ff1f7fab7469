// Package console owns the web console of a box: its pages, its sessions and its login.
//
// It must never act on the box itself: its pages use the routes, credentials and roles of every
// other client of the management listener. It must never serve a file from outside the binary, or
// let text of a program become markup.
package console

import (
	"embed"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed static/*
var static embed.FS

var (
	//go:embed page.html
	homePage string
	//go:embed login.html
	loginPage string
)

// Prefix is the path below which the console is served.
const Prefix = "/ui"

// Program is one row of the page that needs no JavaScript.
type Program struct {
	Name, State, Reason string
	PID                 int
	Restarts            uint64
}

// Config of a Console. Its functions are called from many goroutines at once and must return from
// memory.
type Config struct {
	// Login checks a key and returns its holder. The page shows the error.
	Login func(r *http.Request, key string) (Holder, error)
	// ReadOnly gives every session the rights of a viewer.
	ReadOnly bool
	// Programs are listed on the page for browsers without JavaScript.
	Programs func() []Program
	// Version is shown at the foot of the page.
	Version string
}

// Holder is the owner of a session.
type Holder struct {
	Role string
	ID   string
}

// Console serves the pages and keeps the sessions. Its methods may be called from
// any goroutine.
type Console struct {
	cfg      Config
	sessions sessions
	mux      *http.ServeMux
}

// New returns a console without sessions.
func New(cfg Config) (*Console, error) {
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, err
	}
	c := &Console{cfg: cfg, mux: http.NewServeMux()}
	c.mux.Handle("GET "+Prefix+"/static/", typed(http.StripPrefix(Prefix+"/static/", http.FileServerFS(files))))
	c.mux.HandleFunc("GET "+Prefix, c.home)
	c.mux.HandleFunc("GET "+Prefix+"/{$}", c.home)
	c.mux.HandleFunc("POST "+Prefix+"/login", c.login)
	c.mux.HandleFunc("POST "+Prefix+"/logout", c.logout)
	return c, nil
}

// typed sets the media type of a static file. net/http would ask package mime, which reads files such as
// /etc/mime.types at the first question: a program of root can put a FIFO or a file without end there, and
// that request and all later ones would wait for ever.
func typed(files http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mediaType := "application/octet-stream"
		switch path.Ext(r.URL.Path) {
		case ".css":
			mediaType = "text/css; charset=utf-8"
		case ".js":
			mediaType = "text/javascript; charset=utf-8"
		}
		w.Header().Set("Content-Type", mediaType)
		files.ServeHTTP(w, r)
	})
}

// policy forbids frames, and scripts, styles and connections of other origins (Content Security
// Policy Level 3).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP serves everything below Prefix.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	c.mux.ServeHTTP(w, r)
}

// view has the values that the pages show.
type view struct {
	Role, ID, Version string
	CanChange         bool
	Programs          []Program
	Error             string
}

func (c *Console) home(w http.ResponseWriter, r *http.Request) {
	s, ok := c.sessions.of(r, time.Now())
	if !ok {
		c.show(w, http.StatusOK, loginPage, view{Version: c.cfg.Version})
		return
	}
	c.show(w, http.StatusOK, homePage, view{
		Role: s.holder.Role, ID: s.holder.ID, CanChange: s.holder.Role != RoleViewer, Version: c.cfg.Version, Programs: c.cfg.Programs(),
	})
}

func (c *Console) show(w http.ResponseWriter, status int, page string, v view) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, v.fill(page)) // an error is the client's: it has gone
}

// fill replaces the placeholders of a page, which are in text or in quoted attributes, and escapes
// every value. It does not use html/template, which calls methods by name: the linker would then
// keep every exported method of the binary, some megabytes.
func (v view) fill(page string) string {
	var alert string
	if v.Error != "" {
		alert = `<p class="error" role="alert">` + html.EscapeString(v.Error) + "</p>"
	}
	var rows strings.Builder
	for _, p := range v.Programs {
		pid := ""
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		fmt.Fprintf(&rows, `<tr><th scope="row">%s</th><td>%s</td><td>%s</td><td>%d</td><td>%s</td></tr>`+"\n",
			html.EscapeString(p.Name), html.EscapeString(p.State), pid, p.Restarts, html.EscapeString(p.Reason))
	}
	return strings.NewReplacer(
		"{{Error}}", alert, "{{Programs}}", rows.String(), "{{CanChange}}", strconv.FormatBool(v.CanChange),
		"{{ID}}", html.EscapeString(v.ID), "{{Role}}", html.EscapeString(v.Role), "{{Version}}", html.EscapeString(v.Version),
	).Replace(page)
}

// RoleViewer may only read.
const RoleViewer = "viewer"

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	if !sameOrigin(r) {
		c.show(w, http.StatusForbidden, loginPage, view{Error: "The login form was sent from another site.", Version: c.cfg.Version})
		return
	}
	// FormValue reads at most what the listener lets through as a body.
	holder, err := c.cfg.Login(r, strings.TrimSpace(r.PostFormValue("key")))
	if err != nil {
		c.show(w, http.StatusUnauthorized, loginPage, view{Error: err.Error(), Version: c.cfg.Version})
		return
	}
	if c.cfg.ReadOnly {
		holder.Role = RoleViewer
	}
	cookie, key := c.sessions.open(holder, time.Now(), isSecure(r))
	http.SetCookie(w, cookie)
	// The page stores what is after the #. A browser sends it to no server.
	http.Redirect(w, r, Prefix+"/#key="+key, http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	if sameOrigin(r) {
		http.SetCookie(w, c.sessions.close(r))
	}
	http.Redirect(w, r, Prefix+"/", http.StatusSeeOther)
}

// isSecure tells whether the browser reached the box over TLS. A wrong header of a proxy only makes
// the cookie stricter.
func isSecure(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// Holder returns the owner of the session of a request that has the key of the session. It refuses a
// request that may change something, unless a page of the box sent it.
func (c *Console) Holder(r *http.Request) (Holder, error) {
	s, ok := c.sessions.of(r, time.Now())
	switch {
	case !ok || !s.hasKey(r):
		return Holder{}, ErrNoSession
	case r.Method != http.MethodGet && r.Method != http.MethodHead && !sameOrigin(r):
		return Holder{}, ErrCrossSite
	}
	return s.holder, nil
}

// Errors of Holder.
var (
	ErrNoSession = errors.New("no bearer key was given, and there is no console session, or it has expired: log in again")
	ErrCrossSite = errors.New("a page of another site sent this request")
)

// sameOrigin tells whether a page of this box sent the request. It reads Sec-Fetch-Site (Fetch
// Metadata) and Origin (RFC 6454); every browser sends one of them with a POST.
func sameOrigin(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if site != "" && site != "same-origin" || site == "" && origin == "" {
		return false
	}
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}
