package program

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/leased/leasetest"
)

func TestAFIFOIsNoTimeZone(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ZONEINFO", dir)
	fifo := filepath.Join(dir, "Made", "Up")
	regular := filepath.Join(dir, "Plain")
	if err := errors.Join(os.Mkdir(filepath.Dir(fifo), 0o700), syscall.Mkfifo(fifo, 0o600), os.WriteFile(regular, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if zone, err := LoadZone("Made/Up"); err == nil {
		t.Errorf("loaded %v", zone)
	}
	if zone, err := LoadZone("Europe/Berlin"); err != nil {
		t.Errorf("%v %v", zone, err)
	}
	for tz, want := range map[string]*time.Location{
		"": time.Local, "Europe/Berlin": time.Local, regular: time.Local, ":" + regular: time.Local,
		fifo: time.UTC, ":" + fifo: time.UTC, "Made/Up": time.UTC, ":Made/Up": time.UTC,
	} {
		if zone := LocalZone(tz, true); zone != want {
			t.Errorf("TZ=%s: %p", tz, zone)
		}
	}
	if zone := LocalZone("", false); zone != time.Local {
		t.Errorf("without TZ: %p", zone)
	}
}

// A program of root can hold up each open of a file of the system by a lease, also where the file system is
// mounted read-only.
func TestAZoneWithALeaseIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ZONEINFO", dir)
	zone := filepath.Join(dir, "Leased")
	if err := os.WriteFile(zone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	leasetest.Hold(t, zone)
	if zone, err := LoadZone("Leased"); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("%v %v", zone, err)
	}
	if got := LocalZone(zone, true); got != time.UTC {
		t.Errorf("TZ=%s: %p", zone, got)
	}
}
