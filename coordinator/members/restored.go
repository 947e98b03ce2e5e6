package members

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-project/shoal/coordinator/store"
)

// Paths on the peers' port, where nobody is served but who has a certificate of the
// stores' own CA: what a member was restored to (GET), and joining it again (POST).
const (
	RestoredPath = store.AlsoPath + "restored"
	RejoinPath   = store.AlsoPath + "rejoin"
)

// Restoration is when the cluster's store was last made out of a snapshot.
type Restoration struct {
	Time time.Time `json:"time"`
	// Expects are members of before, at the member that was restored: they may join again.
	Expects []Expected `json:"expects,omitempty"`
}

// Expected is a member of before.
type Expected struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// Next is a restoration at a member that has followed this one, nil for none. It is the later
// one whatever this machine's clock says, or the others would take this one for that; and
// who was expected and has not come is expected still.
func (r *Restoration) Next(now time.Time, self string, others []Expected) Restoration {
	next := Restoration{Time: now.UTC(), Expects: others}
	if r == nil {
		return next
	}
	if !next.Time.After(r.Time) {
		next.Time = r.Time.Add(time.Second)
	}
	for _, e := range r.Expects {
		if e.Name != self && !slices.ContainsFunc(others, func(o Expected) bool { return o.Name == e.Name }) {
			next.Expects = append(next.Expects, e)
		}
	}
	return next
}

// Shown is what a member tells of the restoration that it has followed.
type Shown struct {
	Time    time.Time `json:"time"`
	Cluster string    `json:"cluster"`
	// Proof is of who has the keys that all coordinators have alike.
	Proof []byte `json:"proof,omitempty"`
}

// rejoinRequest asks to become a member again.
type rejoinRequest struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// rejoinAnswer has the URLs of the members.
type rejoinAnswer struct {
	Join  []string `json:"join"`
	Proof []byte   `json:"proof,omitempty"`
}

// prove signs what a member at a URL says with a secret that witnesses have not; nil
// without one. Neither another member's words nor other words can be signed with it.
func prove(secret []byte, at, what string, words ...string) []byte {
	if len(secret) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, secret)
	for _, word := range append([]string{"shoal restored v1", at, what}, words...) {
		fmt.Fprintf(mac, "%d %s\n", len(word), word)
	}
	return mac.Sum(nil)
}

// proven tells whether one with the same secret has said it; who has none believes all
// that have a member's certificate.
func proven(secret, proof []byte, at, what string, words ...string) bool {
	return len(secret) == 0 || hmac.Equal(proof, prove(secret, at, what, words...))
}

const proofShown, proofRejoin = "shown", "rejoin"

func (s Shown) words() []string { return []string{s.Cluster, s.Time.UTC().Format(time.RFC3339Nano)} }

// Rejoining answers members of before on the peers' port.
type Rejoining struct {
	// Ready returns the store, or an error before it is open.
	Ready func() (RejoinStore, error)
	// Last is the restoration that this member has followed; nil: none.
	Last func() (*Restoration, error)
	// URL is this member's, and Secret is made of the keys; none at a witness.
	URL    string
	Secret func() ([]byte, error)
	Log    *slog.Logger

	joining sync.Mutex
}

// RejoinStore is what is asked of the store (store.Store).
type RejoinStore interface {
	Cluster() string
	Members() []store.Member
	ShowAddress(ctx context.Context) error
	AddLearner(ctx context.Context, peerURL string) error
	Remove(ctx context.Context, id uint64) error
}

// ServeHTTP implements http.Handler.
func (r *Rejoining) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var answer any
	var err error
	switch {
	case q.URL.Path == RestoredPath && q.Method == http.MethodGet:
		answer, err = r.show()
	case q.URL.Path == RejoinPath && q.Method == http.MethodPost:
		answer, err = r.rejoin(q)
	default:
		err = refuse(http.StatusNotFound, "there is nothing at %s", q.URL.Path)
	}
	if err != nil {
		refused := refusal{http.StatusServiceUnavailable, err.Error()}
		errors.As(err, &refused)
		http.Error(w, refused.text, refused.code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (r *Rejoining) show() (s Shown, err error) {
	last, err := r.Last()
	if err != nil {
		return s, err
	}
	if last == nil {
		return s, refuse(http.StatusNotFound, "this store was not restored")
	}
	st, err := r.Ready()
	if err != nil {
		return s, err
	}
	s = Shown{Time: last.Time, Cluster: st.Cluster()}
	secret, err := r.Secret()
	s.Proof = prove(secret, r.URL, proofShown, s.words()...)
	return s, err
}

func (r *Rejoining) rejoin(q *http.Request) (a rejoinAnswer, err error) {
	var ask rejoinRequest
	if err := json.NewDecoder(io.LimitReader(q.Body, maxRequest)).Decode(&ask); err != nil {
		return a, refuse(http.StatusBadRequest, "read the request: %v", err)
	}
	last, err := r.Last()
	if err != nil {
		return a, err
	}
	st, err := r.Ready()
	if err != nil {
		return a, err
	}
	if last == nil || !slices.Contains(last.Expects, Expected(ask)) && !votes(st.Members(), ask.URL) {
		return a, refuse(http.StatusForbidden,
			"no %s at %s is expected here: have it join with a token (shoal join --coordinator)", ask.Name, ask.URL)
	}
	if !certified(q, ask.URL) {
		return a, refuse(http.StatusForbidden, "the certificate is not that of %s", ask.URL)
	}
	if !r.joining.TryLock() {
		return a, refuse(http.StatusServiceUnavailable, "another member joins again just now")
	}
	defer r.joining.Unlock()
	if err := admitAgain(q.Context(), st, ask.URL); err != nil {
		return a, err
	}
	r.Log.Info("a coordinator joins again, after the store was restored", "name", ask.Name, "address", ask.URL)
	for _, m := range st.Members() {
		if m.Name != "" {
			a.Join = append(a.Join, m.URL)
		}
	}
	secret, err := r.Secret()
	a.Proof = prove(secret, r.URL, proofRejoin, append([]string{ask.URL}, a.Join...)...)
	return a, err
}

// errVotes is of a member that has all that it asks for.
const errVotes = "it has a vote already"

// votes tells whether a member at a URL has a vote.
func votes(list []store.Member, at string) bool {
	return slices.ContainsFunc(list, func(m store.Member) bool { return m.URL == at && !m.Learner })
}

// admitAgain adds a learner. One that asks again has lost what it was sent.
func admitAgain(ctx context.Context, st RejoinStore, peerURL string) error {
	if err := st.ShowAddress(ctx); err != nil {
		return err
	}
	for _, m := range st.Members() {
		if m.URL != peerURL {
			continue
		}
		if !m.Learner {
			return refuse(http.StatusConflict, errVotes)
		}
		if err := st.Remove(ctx, m.ID); err != nil {
			return err
		}
	}
	return st.AddLearner(ctx, peerURL)
}

// certified tells whether a request's certificate is of a URL's address.
func certified(q *http.Request, at string) bool {
	u, err := url.Parse(at)
	if err != nil || q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip != nil && slices.ContainsFunc(q.TLS.PeerCertificates[0].IPAddresses, ip.Equal)
}

// lookAtRestored is how often the others are asked whether their store was restored: a
// member that has begun another cluster tells the ones of before nothing by itself.
const lookAtRestored = 5 * time.Second

// Watch finds out that the cluster was restored without this member. It believes only
// members that its own store names, at the addresses that it has of them.
type Watch struct {
	Store interface {
		Cluster() string
		Members() []store.Member
	}
	// Last is the restoration that this member has followed; nil: none.
	Last func() (*Restoration, error)
	// Secret is made of this member's keys; none at a witness.
	Secret func() ([]byte, error)
	Client *http.Client
	Log    *slog.Logger

	told map[string]string
}

// Restored is a member that has followed a restoration.
type Restored struct {
	Name, URL string
	Time      time.Time
	// Others are the URLs of all members but this one: one of them lets it in.
	Others []string
}

// Run returns who was restored, or nil when ctx ends.
func (w *Watch) Run(ctx context.Context) *Restored {
	w.told = map[string]string{}
	for {
		others := slices.DeleteFunc(w.Store.Members(), func(m store.Member) bool { return m.Self || m.Name == "" })
		for _, m := range others {
			if r := w.ask(ctx, m); r != nil {
				for _, o := range others {
					r.Others = append(r.Others, o.URL)
				}
				return r
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAtRestored):
		}
	}
}

// ask asks one member. Of errors nothing is said: most members were never restored, and
// those that do not answer the store tells of.
func (w *Watch) ask(ctx context.Context, m store.Member) *Restored {
	data, code, err := send(ctx, w.Client, http.MethodGet, m.URL+RestoredPath, nil)
	if err != nil || code != http.StatusOK {
		return nil
	}
	var shown Shown
	if json.Unmarshal(data, &shown) != nil || shown.Cluster == w.Store.Cluster() {
		return nil
	}
	last, err := w.Last()
	if err == nil && last != nil && !shown.Time.After(last.Time) {
		return nil // this one's is the later one
	}
	var secret []byte
	if err == nil {
		secret, err = w.Secret()
	}
	switch {
	case err != nil:
		w.tell(m, "this coordinator cannot follow", "err", err)
	case !proven(secret, shown.Proof, m.URL, proofShown, shown.words()...):
		w.tell(m, "its keys are others than this coordinator's, which has to join with a token: move its state directory away")
	default:
		return &Restored{Name: m.Name, URL: m.URL, Time: shown.Time}
	}
	return nil
}

func (w *Watch) tell(m store.Member, why string, args ...any) {
	if w.told[m.URL] != why {
		w.told[m.URL] = why
		w.Log.Warn("the cluster was restored from a snapshot, and "+why,
			append(args, "on", m.Name, "address", m.URL)...)
	}
}

// ErrVotes is returned by Rejoin for a member that votes already.
var ErrVotes = errors.New(errVotes)

// Rejoin asks members one after the other to let one of before in again, and returns
// where the members are.
func Rejoin(ctx context.Context, c *http.Client, at []string, self Expected, secret []byte) ([]string, error) {
	body, err := json.Marshal(rejoinRequest(self))
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, one := range at {
		data, code, err := send(ctx, c, http.MethodPost, one+RejoinPath, body)
		var a rejoinAnswer
		switch {
		case err != nil:
		case code == http.StatusConflict:
			err = ErrVotes
		case code != http.StatusOK:
			err = fmt.Errorf("%s refuses: %s", one, strings.TrimSpace(string(data)))
		default:
			if err = json.Unmarshal(data, &a); err != nil {
				break
			}
			if proven(secret, a.Proof, one, proofRejoin, append([]string{self.URL}, a.Join...)...) {
				return a.Join, nil
			}
			err = fmt.Errorf("%s has other keys than this coordinator", one)
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("join the restored cluster again: %w", errors.Join(failed...))
}

func send(ctx context.Context, c *http.Client, method, at string, body []byte) (data []byte, code int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	answer, err := c.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer answer.Body.Close()
	data, err = io.ReadAll(io.LimitReader(answer.Body, maxRequest))
	return data, answer.StatusCode, err
}
