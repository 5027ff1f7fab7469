package sleep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if !For(t.Context(), time.Hour) || time.Since(begun) != time.Hour {
			t.Errorf("an hour took %s", time.Since(begun))
		}
		begun = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if For(ctx, time.Hour) || time.Since(begun) != time.Minute {
			t.Errorf("a context of a minute ended after %s", time.Since(begun))
		}
	})
}
