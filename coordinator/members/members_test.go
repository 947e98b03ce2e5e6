package members

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/coordinator/store"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.CheckOurs(m) }

const secret = "0123456789abcdef"

// fakeStore keeps members, and what was done to them as text.
type fakeStore struct {
	members  []store.Member
	inactive []store.Member
	expected []Expected
	done     []string
}

func (f *fakeStore) Members() []store.Member  { return f.members }
func (f *fakeStore) Inactive() []store.Member { return f.inactive }
func (f *fakeStore) Grow(context.Context, store.Peers) error {
	f.done = append(f.done, "grow")
	return nil
}
func (f *fakeStore) AddLearner(_ context.Context, u string) error {
	f.done = append(f.done, "add "+u)
	return nil
}

func (f *fakeStore) Remove(_ context.Context, id uint64) error {
	f.done = append(f.done, "remove "+string(rune('0'+id)))
	return nil
}

func server(s *fakeStore, alive ...string) *Server {
	return &Server{
		Store:         s,
		Peers:         func() (store.Peers, error) { return store.Peers{}, nil },
		Keep:          func() error { s.done = append(s.done, "keep"); return nil },
		Bundle:        func() (Bundle, error) { return Bundle{Join: []string{"https://192.0.2.1:2380"}}, nil },
		WitnessBundle: func(ip net.IP) (Bundle, error) { return Bundle{Join: []string{"witness at " + ip.String()}}, nil },
		Secret: func(_ context.Context, name string) (string, error) {
			if !strings.HasPrefix(name, "system:bootstrap:") {
				return "", errors.New("no token")
			}
			return secret, nil
		},
		Spend: func(_ context.Context, _, u string) error {
			if strings.Contains(u, "192.0.2.99") {
				return errors.New("used up")
			}
			return nil
		},
		Reaches: func(_ context.Context, u string) bool {
			for _, a := range alive {
				if a == u {
					return true
				}
			}
			return false
		},
		Expected: func() []Expected { return slices.Clone(s.expected) },
		Unexpect: func(name string) error {
			s.expected = slices.DeleteFunc(s.expected, func(e Expected) bool { return e.Name == name })
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

func ask(s *Server, who, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: who, Groups: groups(who)}))
	s.ServeHTTP(w, r)
	return w
}

// groups are those of tokens; one is for witnesses.
func groups(who string) []string {
	if who == "system:bootstrap:wwwwww" {
		return []string{WitnessGroup}
	}
	return []string{Group}
}

const (
	first, second = "https://192.0.2.1:2380", "https://192.0.2.2:2380"
	newcomer      = `{"name": "c", "peerURL": "https://192.0.2.3:2380"}`
)

func two() []store.Member {
	return []store.Member{
		{ID: 1, Name: "a", URL: first, Leads: true, Self: true}, {ID: 2, Name: "b", URL: second},
	}
}

// Who joins, what is done for it, and what it is told when it may not.
func TestJoin(t *testing.T) {
	for name, c := range map[string]struct {
		who, body string
		alive     []string
		code      int
		says      string
		done      string
	}{
		"a newcomer":      {body: newcomer, code: 200, done: "grow, keep, add https://192.0.2.3:2380"},
		"without a token": {who: "admin", body: newcomer, code: 403, says: "token create --coordinator"},
		"a used token":    {body: `{"name": "c", "peerURL": "https://192.0.2.99:2380"}`, code: 403, says: "used up"},
		"no request":      {body: `[`, code: 400, says: "read the request"},
		"a bad name":      {body: `{"name": "C!", "peerURL": "https://192.0.2.3:2380"}`, code: 400, says: `name "C!"`},
		"no address":      {body: `{"name": "c", "peerURL": "https://host:2380"}`, code: 400, says: "--advertise-address"},
		"any address":     {body: `{"name": "c", "peerURL": "https://0.0.0.0:2380"}`, code: 400, says: "--advertise-address"},
		"a path":          {body: `{"name": "c", "peerURL": "https://192.0.2.3:2380/x"}`, code: 400, says: "give https://ADDRESS:PORT"},
		"the name of a living one": {body: `{"name": "b", "peerURL": "https://192.0.2.3:2380", "replace": true}`,
			alive: []string{second}, code: 409, says: "it lives"},
		"the name of a dead one": {body: `{"name": "b", "peerURL": "https://192.0.2.3:2380"}`, code: 409, says: "--replace"},
		"by a used token in place of a dead one": {
			body: `{"name": "b", "peerURL": "https://192.0.2.99:2380", "replace": true}`, code: 403, says: "used up",
		},
		"a learner that asks again": {body: `{"name": "l", "peerURL": "https://192.0.2.9:2380"}`,
			code: 200, done: "remove 3, grow, keep, add https://192.0.2.9:2380"},
		"a witness in place of a coordinator": {
			who:  "system:bootstrap:wwwwww",
			body: `{"name": "c", "peerURL": "https://192.0.2.2:2380", "witness": true, "replace": true}`,
			code: 409, says: "a witness takes the place of witnesses only",
		},
		"a witness": {who: "system:bootstrap:wwwwww", body: `{"name": "c", "peerURL": "https://192.0.2.3:2380", "witness": true}`,
			code: 200, done: "grow, keep, add https://192.0.2.3:2380"},
		"a witness who wants all": {who: "system:bootstrap:wwwwww", body: newcomer, code: 403, says: "for a witness"},
		"in place of a dead one": {body: `{"name": "b", "peerURL": "https://192.0.2.2:2380", "replace": true}`,
			code: 200, done: "remove 2, grow, keep, add https://192.0.2.2:2380"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			learner := store.Member{ID: 3, Name: "l", URL: "https://192.0.2.9:2380", Learner: true}
			f := &fakeStore{members: append(two(), learner)}
			if c.who == "" {
				c.who = "system:bootstrap:abcdef"
			}
			w := ask(server(f, c.alive...), c.who, http.MethodPost, Path, c.body)
			if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("answers %d: %s", w.Code, w.Body)
			}
			if done := strings.Join(f.done, ", "); done != c.done {
				t.Errorf("has done: %s", done)
			}
		})
	}
}

// The keys open with the token's secret, and with nothing else.
func TestSealed(t *testing.T) {
	w := ask(server(&fakeStore{members: two()}), "system:bootstrap:abcdef", http.MethodPost, Path, newcomer)
	var s Sealed
	if err := json.NewDecoder(w.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(s.Data, []byte("192.0.2.1")) {
		t.Error("what is sealed can be read")
	}
	b, err := s.Open(secret)
	if err != nil || len(b.Join) != 1 || b.Join[0] != first {
		t.Errorf("%v, %v", b, err)
	}
	if _, err := s.Open("another"); err == nil || !strings.Contains(err.Error(), "not sealed with this token") {
		t.Errorf("with another secret: %v", err)
	}
	s.Nonce = s.Nonce[:4]
	if _, err := s.Open(secret); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("cut short: %v", err)
	}
}

func TestRemove(t *testing.T) {
	f := &fakeStore{members: two()}
	if w := ask(server(f), "admin", http.MethodDelete, Path+"?name=x", ""); w.Code != 404 ||
		!strings.Contains(w.Body.String(), `no coordinator is called "x"; there are: a https://192.0.2.1:2380`) {
		t.Errorf("an unknown one: %d %s", w.Code, w.Body)
	}
	w := ask(server(f), "admin", http.MethodDelete, Path+"?name=b", "")
	if w.Code != 200 || strings.Join(f.done, "") != "remove 2" {
		t.Errorf("%d %s %v", w.Code, w.Body, f.done)
	}
	f.members = f.members[:1]
	if w := ask(server(f), "admin", http.MethodDelete, Path+"?name=a", ""); w.Code != 409 {
		t.Errorf("the last one: %d %s", w.Code, w.Body)
	}
	if w := ask(server(f), "admin", http.MethodPut, Path, ""); w.Code != 405 {
		t.Errorf("PUT: %d", w.Code)
	}
}

func TestList(t *testing.T) {
	f := &fakeStore{members: append(two(), store.Member{ID: 3, URL: "https://192.0.2.3:2380", Learner: true})}
	var got []Coordinator
	w := ask(server(f, second), "admin", http.MethodGet, Path, "")
	if err := json.NewDecoder(w.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := []Coordinator{
		{Name: "a", URL: first, State: "leader", Self: true, Reached: true},
		{Name: "b", URL: second, State: "follower", Reached: true},
		{URL: "https://192.0.2.3:2380", State: "learner"},
	}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%+v", got)
	}
}

// A newcomer that is silent for long is forgotten; one that was for a while is not.
func TestForget(t *testing.T) {
	f := &fakeStore{inactive: []store.Member{{ID: 3, Learner: true}}}
	s, silent := server(f), map[uint64]time.Time{}
	now := time.Now()
	s.forget(t.Context(), silent, now)
	s.forget(t.Context(), silent, now.Add(patience-time.Second))
	f.inactive = nil
	s.forget(t.Context(), silent, now.Add(patience))
	f.inactive = []store.Member{{ID: 3, Learner: true}}
	s.forget(t.Context(), silent, now.Add(patience+time.Second))
	s.forget(t.Context(), silent, now.Add(2*patience-time.Second))
	if len(f.done) > 0 {
		t.Fatalf("has done: %v", f.done)
	}
	s.forget(t.Context(), silent, now.Add(2*patience+2*time.Second))
	if strings.Join(f.done, "") != "remove 3" {
		t.Errorf("has done: %v", f.done)
	}
}

// FuzzJoin: whatever a holder of a token sends is answered, and adds nothing but an
// address.
func FuzzJoin(f *testing.F) {
	f.Add([]byte(newcomer))
	f.Add([]byte(`{"name": "b", "peerURL": "https://[::1]:1", "replace": true}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &fakeStore{members: two()}
		w := ask(server(s, second), "system:bootstrap:abcdef", http.MethodPost, Path, string(body))
		added := strings.Contains(strings.Join(s.done, ","), "add https://")
		if (w.Code == 200) != added || w.Code >= 500 {
			t.Errorf("answers %d after %v", w.Code, s.done)
		}
	})
}

// FuzzSealed: what a server answers neither panics nor is believed without the secret.
func FuzzSealed(f *testing.F) {
	good, err := Seal(Bundle{}, secret)
	if err != nil {
		f.Fatal(err)
	}
	data, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Sealed
		if json.Unmarshal(data, &s) != nil {
			return
		}
		if _, err := s.Open(secret); err == nil && !bytes.Equal(s.Data, good.Data) {
			t.Error("something else opens")
		}
	})
}
