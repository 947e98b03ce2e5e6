package members

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-project/shoal/coordinator/store"
)

func (f *fakeStore) Cluster() string { return "new" }

func (f *fakeStore) ShowAddress(context.Context) error { return nil }

var restoredAt = time.Date(2026, 11, 26, 3, 0, 0, 0, time.UTC)

func rejoining(s *fakeStore, last *Restoration) *Rejoining {
	return &Rejoining{
		Ready: func() (RejoinStore, error) { return s, nil },
		Last:  func() (*Restoration, error) { return last, nil },
		URL:   first, Secret: func() ([]byte, error) { return []byte("keys"), nil },
		Log: slog.New(slog.DiscardHandler),
	}
}

// askAs sends a request with the certificate of an address.
func askAs(h http.Handler, ip, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.TLS = &tls.ConnectionState{}
	if ip != "" {
		r.TLS.PeerCertificates = []*x509.Certificate{{IPAddresses: []net.IP{net.ParseIP(ip)}}}
	}
	h.ServeHTTP(w, r)
	return w
}

// Who was a member before a restore is let in again, once, with its own certificate; who
// was none is not.
func TestRejoin(t *testing.T) {
	const mine, other = `{"name":"b","url":"` + second + `"}`, `{"name":"x","url":"https://192.0.2.9:2380"}`
	expects := &Restoration{Time: restoredAt, Expects: []Expected{{Name: "b", URL: second}}}
	voter := store.Member{ID: 2, Name: "b", URL: second}
	learner := store.Member{ID: 2, Name: "b", URL: second, Learner: true}
	for name, c := range map[string]struct {
		last     *Restoration
		member   *store.Member
		ip, body string
		code     int
		done     string
	}{
		"expected":     {expects, nil, "192.0.2.2", mine, 200, "add " + second},
		"again":        {expects, &learner, "192.0.2.2", mine, 200, "remove 2,add " + second},
		"votes":        {expects, &voter, "192.0.2.2", mine, 409, ""},
		"certificate":  {expects, nil, "192.0.2.3", mine, 403, ""},
		"none":         {expects, nil, "", mine, 403, ""},
		"stranger":     {expects, nil, "192.0.2.9", other, 403, ""},
		"not_restored": {nil, nil, "192.0.2.2", mine, 403, ""},
		"nonsense":     {expects, nil, "192.0.2.2", "{", 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakeStore{members: []store.Member{{ID: 1, Name: "a", URL: first, Self: true}}}
			if c.member != nil {
				s.members = append(s.members, *c.member)
			}
			w := askAs(rejoining(s, c.last), c.ip, http.MethodPost, RejoinPath, c.body)
			if w.Code != c.code || strings.Join(s.done, ",") != c.done {
				t.Errorf("%d %s after %v", w.Code, w.Body, s.done)
			}
			if w.Code == 200 && !strings.Contains(w.Body.String(), first) {
				t.Errorf("where the members are: %s", w.Body)
			}
		})
	}
}

// answers is a client's transport without a network.
type answers map[string]http.Handler

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	h := a["https://"+r.URL.Host]
	if h == nil {
		return nil, net.ErrClosed
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

type oldStore struct{ members []store.Member }

func (oldStore) Cluster() string { return "old" }

func (o oldStore) Members() []store.Member { return slices.Clone(o.members) }

// A member follows one that was restored later than itself, and is of another cluster,
// with the same keys.
func TestWatch(t *testing.T) {
	a := rejoining(&fakeStore{}, &Restoration{Time: restoredAt})
	same := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(Shown{Time: restoredAt, Cluster: "old"})
	})
	// One without the keys repeats what another has shown, with a later time.
	repeats := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s, _ := a.show()
		s.Time = s.Time.Add(time.Second)
		_ = json.NewEncoder(w).Encode(s)
	})
	elsewhere := rejoining(&fakeStore{}, &Restoration{Time: restoredAt})
	elsewhere.URL = "https://192.0.2.8:2380"
	for name, c := range map[string]struct {
		at    http.Handler
		last  *Restoration
		keys  string
		found bool
	}{
		"restored":       {a, nil, "keys", true},
		"restored_later": {a, &Restoration{Time: restoredAt.Add(-time.Hour)}, "keys", true},
		"witness":        {a, nil, "", true},
		"followed":       {a, &Restoration{Time: restoredAt}, "keys", false},
		"before":         {a, &Restoration{Time: restoredAt.Add(time.Hour)}, "keys", false},
		"other_keys":     {a, nil, "others", false},
		"repeated":       {repeats, nil, "keys", false},
		"elsewhere":      {elsewhere, nil, "keys", false},
		"same_cluster":   {same, nil, "keys", false},
		"not_restored":   {rejoining(&fakeStore{}, nil), nil, "keys", false},
		"down":           {nil, nil, "keys", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				w := &Watch{
					Store: oldStore{[]store.Member{{Name: "a", URL: first}, {Name: "b", URL: second, Self: true},
						{Name: "c", URL: "https://192.0.2.3:2380"}}},
					Last:   func() (*Restoration, error) { return c.last, nil },
					Secret: func() ([]byte, error) { return []byte(c.keys), nil },
					Client: &http.Client{Transport: answers{first: c.at}}, Log: slog.New(slog.DiscardHandler),
				}
				got := w.Run(ctx)
				if (got != nil) != c.found {
					t.Fatalf("%+v", got)
				}
				if got != nil && (got.Name != "a" || !got.Time.Equal(restoredAt) || len(got.Others) != 2) {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// A member that asks goes on to the next where it is refused.
func TestAskAgain(t *testing.T) {
	s := &fakeStore{members: []store.Member{{ID: 1, Name: "a", URL: first}}}
	no := rejoining(&fakeStore{}, nil)
	yes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := &x509.Certificate{IPAddresses: []net.IP{net.ParseIP("192.0.2.2")}}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{own}}
		rejoining(s, &Restoration{Expects: []Expected{{"b", second}}}).ServeHTTP(w, r)
	})
	client := &http.Client{Transport: answers{first: yes, "https://192.0.2.3:2380": no}}
	join, err := Rejoin(t.Context(), client, []string{"https://192.0.2.3:2380", first}, Expected{"b", second},
		[]byte("keys"))
	if err != nil || len(join) != 1 || join[0] != first {
		t.Errorf("%v, %v", join, err)
	}
	for want, c := range map[string]struct{ at, keys string }{
		"join with a token": {"https://192.0.2.3:2380", "keys"}, "other keys": {first, "others"},
	} {
		_, err := Rejoin(t.Context(), client, []string{c.at}, Expected{"b", second}, []byte(c.keys))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}

// Who is expected is listed until it is a member, and can be given up.
func TestExpected(t *testing.T) {
	f := &fakeStore{members: two(), expected: []Expected{{"b", second}, {"witness:w", "https://192.0.2.7:2380"}}}
	w := ask(server(f), "admin", http.MethodGet, Path, "")
	if body := w.Body.String(); strings.Count(body, `"expected"`) != 1 || !strings.Contains(body, `"name":"w"`) {
		t.Errorf("%s", body)
	}
	if w := ask(server(f), "admin", http.MethodDelete, Path+"?name=w", ""); w.Code != 200 || len(f.expected) != 1 {
		t.Errorf("%d %s, %v", w.Code, w.Body, f.expected)
	}
}

// A second restoration is later than the first also by a clock that is behind, and expects
// those that have not come since the first; a machine's own name it does not.
func TestNextRestoration(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	others := []Expected{{"b", "https://b"}}
	var none *Restoration
	if got := none.Next(now, "a", others); !got.Time.Equal(now) || !slices.Equal(got.Expects, others) {
		t.Errorf("the first: %+v", got)
	}
	ahead := &Restoration{Time: now.Add(time.Hour), Expects: []Expected{
		{"a", "https://a"}, {"b", "https://old"}, {"c", "https://c"},
	}}
	got := ahead.Next(now, "a", others)
	if !got.Time.After(ahead.Time) || !slices.Equal(got.Expects, append(others, Expected{"c", "https://c"})) {
		t.Errorf("by a clock that is behind: %+v", got)
	}
}

// Who has come is expected no more, so that it stays out when it is removed; until it has
// noted that it came, it is told that it votes.
func TestCame(t *testing.T) {
	f := &fakeStore{members: two(), expected: []Expected{{"b", second}, {"c", "https://192.0.2.7:2380"}}}
	server(f).forget(t.Context(), map[uint64]time.Time{}, time.Now())
	if !slices.Equal(f.expected, []Expected{{"c", "https://192.0.2.7:2380"}}) {
		t.Errorf("expected: %v", f.expected)
	}
	w := askAs(rejoining(f, &Restoration{}), "192.0.2.2", http.MethodPost, RejoinPath, `{"name":"b","url":"`+second+`"}`)
	if w.Code != http.StatusConflict {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// FuzzRejoin: what a holder of a certificate sends lets in nobody who is not expected.
func FuzzRejoin(f *testing.F) {
	f.Add([]byte(`{"name":"b","url":"` + second + `"}`))
	f.Add([]byte(`{"name":"b","url":"https://192.0.2.2:1"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &fakeStore{}
		r := rejoining(s, &Restoration{Expects: []Expected{{"b", second}}})
		w := askAs(r, "192.0.2.2", http.MethodPost, RejoinPath, string(body))
		if done := strings.Join(s.done, ","); done != "" && done != "add "+second || w.Code >= 500 {
			t.Errorf("%d, %s", w.Code, done)
		}
	})
}
