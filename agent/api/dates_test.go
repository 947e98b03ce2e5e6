package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
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

// The server's clients have the dates heard.
func TestServerIsDated(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Sat, 01 Jan 2000 00:00:07 GMT")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer srv.Close()
	s, err := Connect(Config{Rest: &rest.Config{Host: srv.URL}, NodeName: "n", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var heard []time.Time
	s.SetDated(func(date, sent, received time.Time) { heard = append(heard, date, sent, received) })
	if _, err := s.Client.Discovery().RESTClient().Get().AbsPath("/").DoRaw(t.Context()); err == nil {
		t.Fatal("nothing is there")
	}
	if len(heard) != 3 || heard[0].Year() != 2000 || heard[2].Before(heard[1]) {
		t.Errorf("heard %v", heard)
	}
}
