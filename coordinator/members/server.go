package members

import (
	"context"
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

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/store"
)

// Path is where coordinators are listed (GET), added (POST) and removed (DELETE, with
// the parameter name). Tokens of Group may add them, those of WitnessGroup witnesses
// only, and an administrator may do the rest.
const (
	Path         = "/shoal/v1/coordinators"
	Group        = joinapi.CoordinatorsGroup
	WitnessGroup = joinapi.WitnessesGroup
	// WitnessPrefix begins the names of witnesses, which no host's does.
	WitnessPrefix = "witness:"
)

// Store is what is asked of the store (store.Store).
type Store interface {
	Members() []store.Member
	Grow(ctx context.Context, p store.Peers) error
	AddLearner(ctx context.Context, peerURL string) error
	Remove(ctx context.Context, id uint64) error
	Inactive() []store.Member
}

// Server answers at Path on each coordinator.
type Server struct {
	Store Store
	// Peers makes what this coordinator needs as a member. Keep notes that it is one,
	// once the store has grown: with the note its next start needs the peers' port.
	Peers func() (store.Peers, error)
	Keep  func() error
	// Bundle is what a newcomer gets, WitnessBundle what a witness at an address does:
	// nothing that it could use for more than to vote.
	Bundle        func() (Bundle, error)
	WitnessBundle func(address net.IP) (Bundle, error)
	// Secret is that of the token that a user came with; an error for others.
	Secret func(ctx context.Context, user string) (string, error)
	// Spend counts a use of the token by a newcomer at a URL, once for each of these; an
	// error when it has been used up.
	Spend func(ctx context.Context, user, peerURL string) error
	// Reaches tells whether a member answers.
	Reaches func(ctx context.Context, peerURL string) bool
	// Expected are members of before a restore that have not joined again, of which
	// Unexpect forgets those of a name.
	Expected func() []Expected
	Unexpect func(name string) error
	Log      *slog.Logger

	joining sync.Mutex
}

// Request asks to become a member.
type Request struct {
	// Name is what the coordinator is called: its host's name.
	Name string `json:"name"`
	// PeerURL is where the others reach it: https://ADDRESS:PORT.
	PeerURL string `json:"peerURL"`
	// Replace has a member of that name which does not live any more go first.
	Replace bool `json:"replace,omitempty"`
	// Witness asks for a vote and a copy of the store, and for nothing else: no API is
	// served there.
	Witness bool `json:"witness,omitempty"`
}

// member is how the member is called that it becomes.
func (r Request) member() string {
	if r.Witness {
		return WitnessPrefix + r.Name
	}
	return r.Name
}

// Coordinator is a member in a list.
type Coordinator struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	State   string `json:"state"` // leader, follower, learner
	Witness bool   `json:"witness,omitempty"`
	Self    bool   `json:"self,omitempty"`
	Reached bool   `json:"reached"`
}

// maxRequest bounds what a newcomer says.
const maxRequest = 16 << 10

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	var err error
	switch r.Method {
	case http.MethodGet:
		answer = s.list(r.Context())
	case http.MethodPost:
		answer, err = s.join(r)
	case http.MethodDelete:
		answer, err = struct{}{}, s.remove(r.Context(), r.URL.Query().Get("name"))
	default:
		err = refusal{http.StatusMethodNotAllowed, "use GET, POST or DELETE"}
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

// refusal is an error that is not the server's.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

func refuse(code int, format string, args ...any) error {
	return refusal{code, fmt.Sprintf(format, args...)}
}

func (s *Server) list(ctx context.Context) []Coordinator {
	members := s.Store.Members()
	out := make([]Coordinator, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		name, witness := strings.CutPrefix(m.Name, WitnessPrefix)
		c := Coordinator{Name: name, URL: m.URL, Self: m.Self, State: "follower", Witness: witness}
		switch {
		case m.Learner:
			c.State = "learner"
		case m.Leads:
			c.State = "leader"
		}
		out[i] = c
		wg.Go(func() { out[i].Reached = m.Self || s.Reaches(ctx, m.URL) })
	}
	wg.Wait()
	for _, e := range s.awaited() {
		name, witness := strings.CutPrefix(e.Name, WitnessPrefix)
		out = append(out, Coordinator{Name: name, URL: e.URL, State: "expected", Witness: witness})
	}
	return out
}

// awaited are members of before that are none yet.
func (s *Server) awaited() []Expected {
	members := s.Store.Members()
	return slices.DeleteFunc(s.Expected(), func(e Expected) bool {
		return slices.ContainsFunc(members, func(m store.Member) bool { return m.URL == e.URL })
	})
}

func (s *Server) join(r *http.Request) (Sealed, error) {
	ctx := r.Context()
	user, ok := request.UserFrom(ctx)
	if !ok {
		return Sealed{}, refuse(http.StatusUnauthorized, "come with a token")
	}
	secret, err := s.Secret(ctx, user.GetName())
	if err != nil {
		return Sealed{}, refuse(http.StatusForbidden,
			"the keys are sealed with the secret of a join token, which %s has not: use a token of `shoal token create --coordinator`",
			user.GetName())
	}
	var ask Request
	if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&ask); err != nil {
		return Sealed{}, refuse(http.StatusBadRequest, "read the request: %v", err)
	}
	if err := ask.validate(); err != nil {
		return Sealed{}, err
	}
	if !ask.Witness && !slices.Contains(user.GetGroups(), Group) {
		return Sealed{}, refuse(http.StatusForbidden,
			"the token is for a witness: use --witness, or a token of `shoal token create --coordinator`")
	}
	if !s.joining.TryLock() {
		return Sealed{}, refuse(http.StatusConflict, "another coordinator is joining here: try again in some seconds")
	}
	defer s.joining.Unlock()
	if err := s.admit(ctx, ask, user.GetName()); err != nil {
		return Sealed{}, err
	}
	bundle, err := s.bundle(ask)
	if err != nil {
		return Sealed{}, err
	}
	s.Log.Info("a coordinator joins", "name", ask.member(), "address", ask.PeerURL, "token", user.GetName())
	return Seal(bundle, secret)
}

func (s *Server) bundle(ask Request) (Bundle, error) {
	if !ask.Witness {
		return s.Bundle()
	}
	u, err := url.Parse(ask.PeerURL)
	if err != nil {
		return Bundle{}, err
	}
	return s.WitnessBundle(net.ParseIP(u.Hostname()))
}

// admit adds the newcomer to the members. The token is counted first: with one that is
// used up nobody is removed either.
func (s *Server) admit(ctx context.Context, ask Request, user string) error {
	if err := s.Spend(ctx, user, ask.PeerURL); err != nil {
		return refuse(http.StatusForbidden, "%v", err)
	}
	if err := s.replace(ctx, ask); err != nil {
		return err
	}
	peers, err := s.Peers()
	if err != nil {
		return err
	}
	if err := s.Store.Grow(ctx, peers); err != nil {
		return err
	}
	if err := s.Keep(); err != nil {
		return err
	}
	return s.Store.AddLearner(ctx, ask.PeerURL)
}

// replace removes the members that the newcomer takes the place of. One that has the
// same name or address and lives is somebody else.
func (s *Server) replace(ctx context.Context, ask Request) error {
	for _, m := range s.Store.Members() {
		if m.Name != ask.member() && m.URL != ask.PeerURL {
			continue
		}
		if err := s.replaceable(ctx, m, ask); err != nil {
			return err
		}
		if err := s.Store.Remove(ctx, m.ID); err != nil {
			return fmt.Errorf("remove %s, which is to be replaced: %w", m.Name, err)
		}
		s.Log.Info("a coordinator was removed, another takes its place", "name", m.Name, "address", m.URL)
	}
	return nil
}

// replaceable tells why a member must stay.
func (s *Server) replaceable(ctx context.Context, m store.Member, ask Request) error {
	switch {
	case m.Learner && m.URL == ask.PeerURL:
		// It asked before. What it had by then is lost: who asks has no store. A member
		// that comes back without what it has acknowledged would be no member.
		return nil
	case s.Reaches(ctx, m.URL) && !m.Learner:
		return refuse(http.StatusConflict,
			"there is a coordinator %s at %s, and it lives: give this one another name with --name, or remove that one first (shoal coordinators remove %s)",
			m.Name, m.URL, m.Name)
	case ask.Witness && !strings.HasPrefix(m.Name, WitnessPrefix):
		return refuse(http.StatusConflict, "a coordinator %s belongs at %s: a witness takes the place of witnesses only",
			m.Name, m.URL)
	case !ask.Replace:
		return refuse(http.StatusConflict,
			"a coordinator %s at %s belongs to the cluster and does not answer: --replace has this one take its place",
			m.Name, m.URL)
	}
	return nil
}

func (s *Server) remove(ctx context.Context, name string) error {
	members := s.Store.Members()
	var names []string
	for _, m := range members {
		if strings.TrimPrefix(m.Name, WitnessPrefix) != name && m.URL != name {
			names = append(names, strings.TrimSpace(m.Name+" "+m.URL))
			continue
		}
		if len(members) == 1 {
			return refuse(http.StatusConflict, "%s is the only coordinator: stop it instead", name)
		}
		s.Log.Info("a coordinator is removed", "name", m.Name, "address", m.URL)
		if err := s.Unexpect(m.Name); err != nil {
			return err
		}
		return s.Store.Remove(ctx, m.ID)
	}
	for _, e := range s.awaited() {
		if strings.TrimPrefix(e.Name, WitnessPrefix) == name {
			s.Log.Info("a coordinator of before the restore is expected no more", "name", e.Name, "address", e.URL)
			return s.Unexpect(e.Name)
		}
	}
	return refuse(http.StatusNotFound, "no coordinator is called %q; there are: %s", name, strings.Join(names, ", "))
}

func (r Request) validate() error {
	if bad := validation.IsDNS1123Subdomain(r.Name); len(bad) > 0 {
		return refuse(http.StatusBadRequest, "name %q: %s", r.Name, bad[0])
	}
	u, err := url.Parse(r.PeerURL)
	if err != nil || u.Scheme != "https" || u.Path != "" || u.User != nil || u.RawQuery != "" {
		return refuse(http.StatusBadRequest, "peerURL %q: give https://ADDRESS:PORT", r.PeerURL)
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || ip.IsUnspecified() || ip.IsMulticast() || u.Port() == "" {
		return refuse(http.StatusBadRequest,
			"peerURL %q: give the address by which the other coordinators reach it (--advertise-address), and a port",
			r.PeerURL)
	}
	return nil
}
