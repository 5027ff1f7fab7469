package logs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkCapture measures one program's lines of 100 bytes, from a pipe to the ring and one more
// destination.
func BenchmarkCapture(b *testing.B) {
	chunk := []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 640))
	for _, to := range []struct {
		name   string
		format Format
		to     To
	}{{"ring", FormatRaw, ToNone}, {"raw", FormatRaw, ToConsole}, {"json", FormatJSON, ToConsole}, {"console", FormatConsole, ToConsole}, {"file", FormatRaw, ToFile}} {
		b.Run(to.name, func(b *testing.B) {
			null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer null.Close()
			p := newPlane(b, Config{Stdout: null, Stderr: null, Format: to.format})
			c, stdout, stderr := open(b, p, Options{
				Program: "web", To: to.to, Path: filepath.Join(b.TempDir(), "log"), MaxBytes: 50 << 20, Backups: 1,
			})
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := stdout.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
			closeAll(b, stdout, stderr)
			<-c.Done()
			flush(b, p)
			if d := p.Stats()[0].Dropped; d != 0 {
				b.Errorf("%d bytes dropped", d)
			}
		})
	}
}

// BenchmarkRead measures a reader of lines of 100 bytes: from memory, from the file of this life, and
// from the file of an earlier one.
func BenchmarkRead(b *testing.B) {
	text := strings.Repeat(strings.Repeat("x", 99)+"\n", 2000)
	for _, from := range []struct {
		name      string
		to        To
		old, text string
	}{{"memory", ToNone, "", text}, {"file", ToFile, "", text}, {"earlier", ToFile, text, ""}} {
		b.Run(from.name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "log")
			if err := os.WriteFile(path, []byte(from.old), 0o600); err != nil {
				b.Fatal(err)
			}
			p := newPlane(b, Config{})
			c, stdout, stderr := open(b, p, Options{Program: "web", To: from.to, Path: path})
			write(b, stdout, from.text)
			closeAll(b, stdout, stderr)
			<-c.Done()
			flush(b, p)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for range p.Read(b.Context(), Query{Files: true}) {
					n++
				}
				if n != 2000 {
					b.Fatalf("read %d lines", n)
				}
			}
		})
	}
}

// BenchmarkIdleCapture reports the memory of the capture of a silent program.
func BenchmarkIdleCapture(b *testing.B) {
	const programs = 1000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 4*programs+100 {
		b.Skip("needs more descriptors than the limit allows")
	}
	for b.Loop() {
		p := New(Config{})
		before := memory()
		var ends []*os.File
		for i := range programs {
			_, stdout, stderr := open(b, p, Options{Program: fmt.Sprint("p", i), To: ToNone})
			ends = append(ends, stdout, stderr)
		}
		after := memory()
		b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/programs, "B/program")
		b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
		closeAll(b, ends...)
		if err := p.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

func BenchmarkAppendJSON(b *testing.B) {
	for name, line := range map[string][]byte{
		"text":   bytes.Repeat([]byte("word "), 20),
		"object": []byte(`{"level":"info","time":"2026-01-02T12:00:00Z","msg":"request","path":"/v1/agents","status":200,"ms":1.25}`),
	} {
		b.Run(name, func(b *testing.B) {
			batch := &batch{now: noon}
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				batch.out = appendJSON(batch, "web", Stdout, 1, line, false)[:0]
			}
		})
	}
}
