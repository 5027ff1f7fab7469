package adapters_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func TestUntilDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := adapters.UntilDone(ctx, strings.NewReader("abc"))
	buf := make([]byte, 1)
	if _, err := io.ReadFull(r, buf); err != nil || string(buf) != "a" {
		t.Fatalf("%q, %v", buf, err)
	}
	cancel()
	if n, err := r.Read(buf); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %d, %v", n, err)
	}
}
