package ready

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// probeClient makes a client that asks programs of this box directly. It uses no proxy and keeps no
// connections. It follows no redirect: a redirect is an answer, and its target could be anywhere.
// The size of headers is limited. Certificates are not verified, as in the kubelet, because the
// question is only whether the program answers.
func probeClient(h2c bool) *http.Client {
	transport := &http.Transport{
		DialContext:            dialToAsk,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true},
		Protocols:              new(http.Protocols),
	}
	if h2c {
		transport.Protocols.SetUnencryptedHTTP2(true)
	} else {
		transport.Protocols.SetHTTP1(true)
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: outbound.NoRedirect,
	}
}

// asking is a connection from which nothing is read before something was written. If a program
// speaks first, such as an SSH server, net/http would write its words to the standard logger, and
// its error would be no sentence.
type asking struct {
	net.Conn
	asked chan struct{}
	once  sync.Once
}

func dialToAsk(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := hostname.Dial(&net.Dialer{})(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &asking{Conn: conn, asked: make(chan struct{})}, nil
}

func (c *asking) release() { c.once.Do(func() { close(c.asked) }) }

func (c *asking) Write(p []byte) (int, error) {
	defer c.release()
	return c.Conn.Write(p)
}

func (c *asking) Read(p []byte) (int, error) {
	<-c.asked
	return c.Conn.Read(p)
}

func (c *asking) Close() error {
	defer c.release()
	return c.Conn.Close()
}

func httpDialect(_ *Watcher, _ Target, p program.Probe) dialect {
	poll := func(ctx context.Context) error { return httpGet(ctx, p.Target) }
	return dialect{name: "http " + p.Shown(), poll: poll}
}

func httpGet(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return errors.New("not a usable URL")
	}
	req.Header.Set("User-Agent", "agentinit-probe")
	client := probeClient(false)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return outbound.WithoutURL(err)
	}
	resp.Body.Close() // the status decides
	if resp.StatusCode >= 200 && resp.StatusCode < 400 {
		return nil
	}
	return errors.New("status " + resp.Status)
}

// grpcDialect calls grpc.health.v1.Health/Check over cleartext HTTP/2
// (https://github.com/grpc/grpc/blob/master/doc/health-checking.md). It needs no gRPC client,
// because the two messages have one field each.
func grpcDialect(_ *Watcher, _ Target, p program.Probe) dialect {
	poll := func(ctx context.Context) error {
		address, service, _ := strings.Cut(p.Target, "/")
		return grpcCheck(ctx, address, service)
	}
	return dialect{name: "grpc " + p.Target, poll: poll}
}

func grpcCheck(ctx context.Context, address, service string) error {
	target := "http://" + address + "/grpc.health.v1.Health/Check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(healthRequest(service)))
	if err != nil {
		return errors.New("not a usable address")
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set("Grpc-Timeout", fmt.Sprintf("%dm", max(time.Until(deadline).Milliseconds(), 1)))
	}
	client := probeClient(true)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return outbound.WithoutURL(err)
	}
	defer resp.Body.Close() // the body was only read
	if resp.StatusCode != http.StatusOK {
		return errors.New("status " + resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxHealthResponse))
	if err != nil {
		return outbound.WithoutURL(err)
	}
	if err := grpcStatus(resp); err != nil {
		return err
	}
	return servingStatus(body)
}

// maxHealthResponse is the limit for a message that needs seven bytes.
const maxHealthResponse = 1 << 10

// grpcStatus reads the status from the trailers, or from the headers if the response has only
// headers.
func grpcStatus(resp *http.Response) error {
	for _, h := range []http.Header{resp.Trailer, resp.Header} {
		if code := h.Get("Grpc-Status"); code != "" && code != "0" {
			return fmt.Errorf("grpc status %s %s", code, h.Get("Grpc-Message"))
		} else if code == "0" {
			return nil
		}
	}
	return errors.New("the answer has no grpc status")
}

// healthRequest frames HealthCheckRequest{service}.
func healthRequest(service string) []byte {
	var msg []byte
	if service != "" {
		msg = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(service))), service...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...)
}

var servingNames = map[uint64]string{0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

// servingStatus reads the frame of a HealthCheckResponse.
func servingStatus(frame []byte) error {
	if len(frame) < 5 || frame[0] != 0 || int(binary.BigEndian.Uint32(frame[1:5])) != len(frame)-5 {
		return errors.New("the answer is not one uncompressed gRPC message")
	}
	status, err := statusField(frame[5:])
	if err != nil {
		return err
	}
	if status == 1 {
		return nil
	}
	if name, ok := servingNames[status]; ok {
		return errors.New(name)
	}
	return fmt.Errorf("serving status %d", status)
}

var errBadMessage = errors.New("the answer is not a HealthCheckResponse")

// statusField searches a protobuf message for field 1, a varint. It returns 0 if the field is
// absent, and skips other fields, as protobuf requires.
func statusField(msg []byte) (status uint64, err error) {
	for len(msg) > 0 {
		tag, n := binary.Uvarint(msg)
		if n <= 0 {
			return 0, errBadMessage
		}
		msg = msg[n:]
		skip := 0
		switch tag & 7 {
		case 0:
			value, n := binary.Uvarint(msg)
			if n <= 0 {
				return 0, errBadMessage
			}
			if tag>>3 == 1 {
				status = value
			}
			skip = n
		case 1:
			skip = 8
		case 2:
			size, n := binary.Uvarint(msg)
			if n <= 0 || size > uint64(len(msg)) {
				return 0, errBadMessage
			}
			skip = n + int(size)
		case 5:
			skip = 4
		default:
			return 0, errBadMessage
		}
		if skip > len(msg) {
			return 0, errBadMessage
		}
		msg = msg[skip:]
	}
	return status, nil
}
