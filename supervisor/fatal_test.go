package supervisor

import (
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Each start uses all of start_timeout, so fewer starts than restart_limit's count fit into the
// window of restart_limit. The program still becomes FATAL.
func TestAHangingStartIsFatalBeforeTheSeal(t *testing.T) {
	inBox(t, func(b *box) {
		web := spec("web", notify, func(s *program.Spec) { s.Required, s.Backoff.Max = true, 10*time.Second })
		timeout := program.SealTimeout([]*program.Spec{&web})
		b.boot(Config{}, web)
		b.pass(timeout / 2)
		if st := b.status("web"); st.State == program.Fatal || st.GaveUp() != "" {
			t.Errorf("after half of the time: %v (%s)", st.State, st.Reason)
		}
		b.pass(timeout/2 - time.Second)
		b.is("web", program.Fatal, "gave up after 11 failed starts in a row")
		if st := b.status("web"); st.GaveUp() == "" { // the seal ends the box with status 67
			t.Error("the seal goes on waiting for web")
		}
	})
}
