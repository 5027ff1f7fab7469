package probes

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// unread is a client that reads nothing until it is given up.
type unread struct {
	*httptest.ResponseRecorder
	gone  chan struct{}
	begun func()
}

func (u *unread) Write(b []byte) (int, error) {
	u.begun()
	<-u.gone
	return 0, http.ErrHandlerTimeout
}

func (u *unread) SetWriteDeadline(time.Time) error {
	close(u.gone)
	return nil
}

// Clients that do not read their metrics do not fill the memory: the oldest of them is given up. The
// others, and those that read, are not affected.
func TestUnreadScrapesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scrapes{max: 2500, render: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte(strings.Repeat("x", 1000)))
		})}
		request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		var clients sync.WaitGroup
		var slow [4]*unread
		for i := range slow {
			slow[i] = &unread{httptest.NewRecorder(), make(chan struct{}), func() {}}
			clients.Go(func() { s.ServeHTTP(slow[i], request) })
			synctest.Wait()
		}
		for i, c := range slow {
			givenUp := false
			select {
			case <-c.gone:
				givenUp = true
			default:
			}
			if givenUp != (i < 2) {
				t.Errorf("client %d was given up: %v", i, givenUp)
			}
		}
		fast := httptest.NewRecorder()
		s.ServeHTTP(fast, request)
		if fast.Code != http.StatusOK || fast.Body.Len() != 1000 {
			t.Errorf("a client that reads gets %d and %d bytes", fast.Code, fast.Body.Len())
		}
		close(slow[3].gone) // it has read
		clients.Wait()
		if s.held != 0 || len(s.unsent) != 0 {
			t.Errorf("%d bytes of %d answers are held in the end", s.held, len(s.unsent))
		}
	})
}

// Scrapes wait for their turn, and a client that does not read has none.
func TestScrapesWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scrapes{turns: make(chan struct{}, maxScrapes), max: unsentScrapes}
		collect := make(chan struct{})
		s.render = s.inTurn(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-collect
			w.Write([]byte("metrics"))
		}))
		request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		sending := make(chan struct{}, 2*maxScrapes)
		var clients sync.WaitGroup
		var slow [2 * maxScrapes]*unread
		for i := range slow {
			slow[i] = &unread{httptest.NewRecorder(), make(chan struct{}), func() { sending <- struct{}{} }}
			clients.Go(func() { s.ServeHTTP(slow[i], request) })
		}
		synctest.Wait()
		if len(s.turns) != maxScrapes {
			t.Errorf("%d scrapes run, want %d", len(s.turns), maxScrapes)
		}
		close(collect)
		synctest.Wait()
		if len(s.turns) != 0 || len(sending) != len(slow) {
			t.Errorf("%d scrapes run, %d answers are being sent, want 0 and %d", len(s.turns), len(sending), len(slow))
		}
		for _, c := range slow {
			close(c.gone)
		}
		clients.Wait()
	})
}
