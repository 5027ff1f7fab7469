package rotated

import (
	"testing"
	"time"
)

func TestLog(t *testing.T) {
	rotated := "/l/web.log." + time.Now().UTC().Format(Layout)
	for name, want := range map[string]string{
		rotated: "/l/web.log", rotated + ".gz": "/l/web.log", rotated + ".zst": "/l/web.log",
		rotated + ".bz2": "", rotated + ".gz.part": "", "/l/web.log": "", "/l/web.log.1": "", "": "",
	} {
		log, ok := Log(name)
		if ok != (want != "") || ok && log != want || !ok && log != name {
			t.Errorf("Log(%q) = %q, %v", name, log, ok)
		}
	}
}
