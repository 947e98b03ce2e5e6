package api

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Dated takes the time that an answer of the API server's bears, to the second, and this
// machine's when it was asked and had answered.
type Dated func(date, sent, received time.Time)

// datedEvery is how often an answer's date is looked at: one each time that the Lease is
// renewed.
const datedEvery = 5 * time.Second

// SetDated has f hear the dates of answers from now on.
func (s *Server) SetDated(f Dated) { s.dated.Store(&f) }

// hearDates looks at the dates of answers, which come anyway.
func (s *Server) hearDates() {
	s.cfg.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &dates{next: next, heard: &s.dated}
	})
}

type dates struct {
	next  http.RoundTripper
	heard *atomic.Pointer[Dated]
	mu    sync.Mutex
	last  time.Time
}

func (d *dates) RoundTrip(r *http.Request) (*http.Response, error) {
	heard := d.heard.Load()
	if heard == nil {
		return d.next.RoundTrip(r)
	}
	began := time.Now()
	answer, err := d.next.RoundTrip(r)
	if err != nil || !d.due(began) {
		return answer, err
	}
	date, bad := http.ParseTime(answer.Header.Get("Date"))
	if bad != nil {
		return answer, nil
	}
	// Both by the clock of now, though it was set in between.
	received := time.Now()
	sent := received.Round(0).Add(-received.Sub(began))
	(*heard)(date, sent, received.Round(0))
	return answer, nil
}

func (d *dates) due(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.last.IsZero() && now.Sub(d.last) < datedEvery {
		return false
	}
	d.last = now
	return true
}
