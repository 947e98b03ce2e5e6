package api

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Of the answers one each some seconds is looked at, by the clock as it is when it came.
func TestDates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard atomic.Pointer[Dated]
		header := http.Header{"Date": {"Sat, 01 Jan 2000 00:00:07 GMT"}}
		d := &dates{heard: &heard, next: roundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{Header: header}, nil
		})}
		ask := func() {
			if _, err := d.RoundTrip(httptest.NewRequest("GET", "/", nil)); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		ask() // nobody listens
		f := Dated(func(date, sent, received time.Time) {
			n++
			if date.Second() != 7 || received.Sub(sent) != 2*time.Second || !received.Equal(time.Now()) {
				t.Errorf("%v between %v and %v", date, sent, received)
			}
		})
		heard.Store(&f)
		for range 6 {
			ask()
		}
		if n != 2 {
			t.Errorf("%d dates in 12 seconds, want 2", n)
		}
		time.Sleep(datedEvery)
		header = http.Header{"Date": {"today"}}
		if ask(); n != 2 {
			t.Error("a date that is none")
		}
	})
}
