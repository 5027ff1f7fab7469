package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

// Limits for what a relay says of itself, in bytes.
const (
	maxDocument = 64 << 10
	maxName     = 100
)

const documentType = "application/nostr+json"

// Document is the part of a relay's description of itself (NIP-11) that the pool uses. It is not
// verified. Only MaxMessage has an effect: the pool does not send larger messages.
type Document struct {
	Name          string `json:"name,omitempty"`
	Software      string `json:"software,omitempty"`
	Version       string `json:"version,omitempty"`
	NIPs          []int  `json:"supported_nips,omitempty"`
	MaxMessage    int    `json:"max_message_length,omitempty"` // bytes; 0 = not given
	LoginRequired bool   `json:"auth_required,omitempty"`
}

// IsZero tells whether the document is empty.
func (d Document) IsZero() bool {
	return d.Name == "" && d.Software == "" && d.Version == "" && len(d.NIPs) == 0 && d.MaxMessage == 0 && !d.LoginRequired
}

// parseDocument reads a document. A field whose type differs from NIP-11 makes the document invalid.
func parseDocument(raw []byte) (Document, error) {
	var in struct {
		Document
		Limitation struct {
			MaxMessage    int  `json:"max_message_length"`
			LoginRequired bool `json:"auth_required"`
		} `json:"limitation"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Document{}, fmt.Errorf("the relay's document is invalid: %w", err)
	}
	d := in.Document
	d.MaxMessage, d.LoginRequired = max(0, in.Limitation.MaxMessage), in.Limitation.LoginRequired
	d.Name, d.Software, d.Version = escape.Line(d.Name, maxName), escape.Line(d.Software, maxName), escape.Line(d.Version, maxName)
	d.NIPs = d.NIPs[:min(len(d.NIPs), 100)]
	return d, nil
}

// FetchDocument fetches the document of a relay over the network. It does not follow redirects.
func FetchDocument(ctx context.Context, url string) (Document, error) {
	address, ok := strings.CutPrefix(url, "ws") // ws:// and wss://
	if !ok {
		return Document{}, fmt.Errorf("%.100q is no address of a relay", url)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+address, nil)
	if err != nil {
		return Document{}, err
	}
	req.Header.Set("Accept", documentType)
	resp, err := client().Do(req)
	if err != nil {
		return Document{}, err
	}
	defer resp.Body.Close()
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode != http.StatusOK || err != nil || kind != documentType {
		return Document{}, fmt.Errorf("the relay answered %s, %.100q", resp.Status, resp.Header.Get("Content-Type"))
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return Document{}, err
	}
	if len(raw) > maxDocument {
		return Document{}, errors.New("the relay's document is too large")
	}
	return parseDocument(raw)
}

// client returns an HTTP client that follows no redirects and keeps no idle connections.
func client() *http.Client {
	return &http.Client{
		Transport: sysroots.Transport(&http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: hostname.Dial(&net.Dialer{}), ForceAttemptHTTP2: true,
			DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
		}),
		CheckRedirect: outbound.NoRedirect,
	}
}
