package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// serveHTTP answers every request with 200. It serves as target of readiness probes.
func serveHTTP(args []string) error {
	port, err := number(args, 0, 0)
	if err != nil {
		return err
	}
	server := http.Server{
		Addr:              ":" + strconv.Itoa(port),
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "you asked for", r.URL.Path)
		}),
	}
	fmt.Println("serving", server.Addr)
	return server.ListenAndServe()
}

// pester keeps N connections to each address and sends requests without pause, for the given number
// of seconds. It prints the number of answers.
func pester(args []string) error {
	paths := []string{"/health", "/metrics", "/ready?verbose", "/livez"}
	answers, err := besiege(args, func(i int, address string, end time.Time) int64 {
		return ask(address, paths[i%len(paths)], end)
	})
	if err == nil {
		fmt.Println("answers", answers)
	}
	return err
}

// besiege reads N, a number of seconds and addresses from args. For that time, N goroutines for
// each address call one again and again. i is the number of the goroutine. besiege returns the sum
// of the results of one.
func besiege(args []string, one func(i int, address string, end time.Time) int64) (sum int64, err error) {
	n, err := number(args, 0, 100)
	if err != nil {
		return 0, err
	}
	seconds, err := number(args, 1, 10)
	if err != nil {
		return 0, err
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var total atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		for _, address := range args[2:] {
			all.Go(func() {
				for time.Now().Before(end) {
					total.Add(one(i, address, end))
				}
			})
		}
	}
	all.Wait()
	return total.Load(), nil
}

// ask sends requests on one connection until it fails, and counts the answers.
func ask(address, path string, end time.Time) (answers int64) {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		time.Sleep(10 * time.Millisecond)
		return 0
	}
	defer c.Close()
	if c.SetDeadline(end.Add(time.Second)) != nil {
		return 0
	}
	r := bufio.NewReader(c)
	for time.Now().Before(end) {
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return answers
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return answers
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return answers
		}
		answers++
	}
	return answers
}

// httpGet prints the body at an address. A status of 400 or above is an error.
func httpGet(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one URL")
	}
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(args[0])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s: %s", args[0], resp.Status)
	}
	return nil
}

// gorge keeps N connections to each address busy. It sends requests of the maximum size that never
// end, and it does not read the answers.
func gorge(args []string) error {
	head := "Host: localhost\r\nAuthorization: " + os.Getenv("GORGE_AUTHORIZATION") + "\r\n"
	// Each request is incomplete, or asks for an answer that is not read.
	ways := []string{
		"GET /livez HTTP/1.1\r\n" + head + "X: " + strings.Repeat("x", 56<<10),
		"GET /livez HTTP/1.1\r\n" + head + strings.Repeat("a: b\r\n", 2000),
		"POST /v1/events HTTP/1.1\r\n" + head + "Content-Type: application/json\r\nContent-Length: 8388608\r\n\r\n{\"kind\":\"" + strings.Repeat("x", 8<<20-11),
		"POST /v1/start HTTP/1.1\r\n" + head + "Content-Type: application/json\r\nContent-Length: 65536\r\n\r\n{\"names\":[\"" + strings.Repeat("x", 64<<10-13),
		strings.Repeat("GET /metrics HTTP/1.1\r\n"+head+"\r\n", 200),
		strings.Repeat("GET /v1/programs HTTP/1.1\r\n"+head+"\r\n", 200),
		"GET /v1/events HTTP/1.1\r\n" + head + "Accept: text/event-stream\r\n\r\n",
	}
	sent, err := besiege(args, func(i int, address string, end time.Time) int64 {
		return feed(address, ways[i%len(ways)], end)
	})
	if err == nil {
		fmt.Println("gorged", sent)
	}
	return err
}

// feed sends as much of text as the server accepts. It keeps the connection until the server closes
// it.
func feed(address, text string, end time.Time) int64 {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	c, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		time.Sleep(10 * time.Millisecond)
		return 0
	}
	defer c.Close()
	if c.SetDeadline(end) != nil {
		return 0
	}
	sent, err := io.WriteString(c, text)
	for err == nil {
		// Read only enough to see that the server is still there.
		time.Sleep(100 * time.Millisecond)
		_, err = c.Read(make([]byte, 1))
	}
	return int64(sent)
}

// flood opens connections and keeps them. Each one sends the head of a request that never ends. If
// the server refuses or closes a connection, that is not an error.
func flood(args []string) error {
	n, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return errors.New("want an address")
	}
	var held []net.Conn
	for _, address := range args[1:] {
		network := "tcp"
		if strings.HasPrefix(address, "/") {
			network = "unix"
		}
		for range n {
			c, err := net.DialTimeout(network, address, time.Second)
			if err != nil {
				continue
			}
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHo")
			held = append(held, c)
		}
	}
	fmt.Println("held", len(held))
	return forever()
}
