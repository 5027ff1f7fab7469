package proc

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func keeperOf(t *testing.T, flags int, score string, tell func(ScoreRaised)) (*scoreKeeper, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "oom_score_adj")
	if err := os.WriteFile(name, []byte(score), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &scoreKeeper{file: f, tell: tell, events: -1, want: 0}, name
}

func TestScoreIsRestored(t *testing.T) {
	for _, tc := range []struct {
		found string
		left  string
		told  []ScoreRaised
	}{
		{"0\n", "0", nil},
		{"700\n", "0", []ScoreRaised{{Was: 700, Now: 0, Count: 1}}},
		{"1\n", "0", []ScoreRaised{{Was: 1, Now: 0, Count: 1}}},
		{"-500\n", "-500", nil},
		{"\n", "", nil},
	} {
		var told []ScoreRaised
		k, name := keeperOf(t, os.O_RDWR, tc.found, func(s ScoreRaised) { told = append(told, s) })
		k.look()
		k.look()
		b, err := os.ReadFile(name)
		left, _, _ := strings.Cut(string(b), "\n")
		if err != nil || left != tc.left || len(told) != len(tc.told) || len(told) > 0 && told[0] != tc.told[0] {
			t.Errorf("%q: left %q, told %+v, %v", tc.found, left, told, err)
		}
	}
}

// A score that is raised in a loop is restored each time and reported once a minute. A failure is
// reported at once.
func TestScoreRaisedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []ScoreRaised
		k, name := keeperOf(t, os.O_RDWR, "0\n", func(s ScoreRaised) { told = append(told, s) })
		raise := func() {
			if err := os.WriteFile(name, []byte("9\n"), 0); err != nil {
				t.Fatal(err)
			}
			k.look()
		}
		for range 10 {
			raise()
		}
		time.Sleep(scoreToldAgain)
		raise()
		if len(told) != 2 || told[0].Count != 1 || told[1].Count != 11 || k.restored() != 11 {
			t.Fatalf("told %+v, restored %d", told, k.restored())
		}
		readOnly, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer readOnly.Close()
		k.file = readOnly
		raise()
		raise()
		if len(told) != 3 || told[2].Was != 9 || told[2].Now != 9 || told[2].Count != 11 || !errors.Is(told[2].Err, unix.EBADF) {
			t.Errorf("told %+v", told)
		}
	})
}

const keeperOff = "AGENTINIT_TEST_NO_KEEPER"

// A program with uid 0 and no capabilities raises our score through each file that shows it, and
// the score is restored. No process is started or reaped meanwhile. Without the keeper, the same
// test must fail.
func TestPID1ScoreStays(t *testing.T) {
	if !insidePID1(t) {
		_, out, failed := asPID1(t, keeperOff+"=1")
		if !failed || !strings.Contains(out, "stays raised") {
			t.Errorf("with the keeper off the test is not red:\n%s", out)
		}
		return
	}
	told := make(chan ScoreRaised, 16)
	opts := Options{LowerOOMScore: true, ScoreRaised: func(s ScoreRaised) { told <- s }}
	if os.Getenv(keeperOff) != "" {
		opts.ScoreRaised = nil
	}
	o := newOwner(t, opts)
	if o.score != nil && o.score.events < 0 {
		t.Skip("needs root and inotify(7)")
	}
	before, err := readNumber(scoreFile)
	if err != nil {
		t.Fatal(err)
	}
	// The files of the threads that exist when the program starts.
	files, err := filepath.Glob("/proc/1/task/*/oom_*adj")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	tries := 1000
	if o.score == nil {
		tries = 20
	}
	c := sh(`
grep CapEff /proc/self/status
for f in /proc/1/oom_score_adj /proc/1/oom_adj ` + strings.Join(files, " ") + `; do
	case $f in *score*) to=700;; *) to=15;; esac # 15 is 1000 there (proc(5), oom_adj)
	echo $to > $f || exit 3
	i=0
	while read now < /proc/1/oom_score_adj && [ $now -ge 700 ]; do
		i=$((i+1))
		[ $i -lt ` + strconv.Itoa(tries) + ` ] || { echo "$f stays raised"; exit 4; }
		sleep 0.01
	done
done`)
	c.Guard = GuardFull
	c.Sandbox = &Sandbox{Capabilities: []int{}}
	r, err := o.Run(t.Context(), c, 1000)
	if err != nil || r.Exit.Code() != 0 || !strings.Contains(string(r.Output), "CapEff:\t0000000000000000") {
		t.Fatalf("%s %+v %v", r.Output, r.Exit, err)
	}
	if after, err := readNumber(scoreFile); err != nil || after != before {
		t.Errorf("the score is %d and was %d, %v", after, before, err)
	}
	if s := <-told; s.Was != 700 || s.Now != before || s.Count != 1 || s.Err != nil {
		t.Errorf("told %+v", s)
	}
	if n := o.Stats().Scores; n < 2 {
		t.Errorf("restored %d times", n)
	}
}

// If we are not root, a program of our uid cannot open our score, but we can restore it.
func TestScoreOfAnOrdinaryUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs an ordinary user: root opens every file of root")
	}
	told := make(chan ScoreRaised, 1)
	o := newOwner(t, Options{ScoreRaised: func(s ScoreRaised) { told <- s }})
	if o.score == nil {
		t.Skip("needs a process whose files in /proc are still its own: an earlier Owner has made them root's")
	}
	r, err := o.Run(t.Context(), sh("echo 700 > /proc/"+strconv.Itoa(os.Getpid())+"/oom_score_adj"), 1000)
	if err != nil || r.Exit.Code() == 0 {
		t.Errorf("a program of our uid raised our score: %s %v", r.Output, err)
	}
	before, err := readNumber(scoreFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.score.file.WriteAt([]byte("1000"), 0); err != nil {
		t.Fatal(err)
	}
	if s := <-told; s.Was != 1000 || s.Now != before || s.Err != nil {
		t.Errorf("told %+v", s)
	}
}
