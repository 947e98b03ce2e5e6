package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// Path is where each coordinator tells how far all are (GET), takes the next step (PUT),
// and forgets one that is gone (DELETE, with the parameter name). Only a client certificate
// of the group system:masters may: it is made with the CA's key at hand, and nobody whose
// rights can be taken away sees or changes a key, not by the right to impersonate either.
const Path = "/shoal/v1/keys"

// Status is how far all coordinators are.
type Status struct {
	// Self is who answers.
	Self string      `json:"self"`
	Sets []SetStatus `json:"sets"`
}

// SetStatus is that of a set.
type SetStatus struct {
	Name       string    `json:"name"`
	Step       string    `json:"step"`
	Generation int64     `json:"generation"` // 0: never rotated
	Since      time.Time `json:"since"`
	Digest     string    `json:"digest"`
	Behind     []Behind  `json:"behind,omitempty"`
	// Followed are those that use the step's files.
	Followed []string `json:"followed"`
}

// Behind is a coordinator that does not use the step's files, and why as far as it is
// known.
type Behind struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

func (b Behind) String() string { return b.Name + ": " + b.Why }

// Change is the next step of a set.
type Change struct {
	Set  string `json:"set"`
	Step string `json:"step"`
	// Base is the Digest of what was changed.
	Base  string    `json:"base"`
	Files pki.Files `json:"files"`
	// Force goes on without coordinators that are behind.
	Force bool `json:"force,omitempty"`
}

type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

// ServeHTTP implements http.Handler.
func (m *Member) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	err := m.may(r)
	if err == nil {
		switch r.Method {
		case http.MethodGet:
			answer, err = m.Status(r.Context())
		case http.MethodDelete:
			answer, err = struct{}{}, m.Forget(r.Context(), r.URL.Query().Get("name"))
		case http.MethodPut:
			var c Change
			if err = json.NewDecoder(io.LimitReader(r.Body, maxFiles)).Decode(&c); err != nil {
				err = refusal{http.StatusBadRequest, "read the request: " + err.Error()}
			} else {
				answer, err = struct{}{}, m.Change(r.Context(), c)
			}
		default:
			err = refusal{http.StatusMethodNotAllowed, "use GET, PUT or DELETE"}
		}
	}
	if err != nil {
		refused := refusal{http.StatusServiceUnavailable, err.Error()}
		errors.As(err, &refused)
		http.Error(w, refused.text, refused.code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(answer)
}

// may fails unless the request is one of the group system:masters by its own certificate.
// The request's user is another when it is impersonated, or told by a front proxy.
func (m *Member) may(r *http.Request) error {
	refused := refusal{http.StatusForbidden, "only who shows a client certificate of the group " +
		user.SystemPrivilegedGroup + " may see and change keys, and not in the name of another"}
	if m.Shown == nil {
		return refused
	}
	shown, ok := m.Shown(r)
	if !ok || !slices.Contains(shown.GetGroups(), user.SystemPrivilegedGroup) {
		return refused
	}
	who, ok := request.UserFrom(r.Context())
	if !ok || who.GetName() != shown.GetName() || !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return refused
	}
	return nil
}

// Status tells how far all coordinators are.
func (m *Member) Status(ctx context.Context) (Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.read(ctx)
	if err != nil {
		return Status{}, err
	}
	if err := m.tell(ctx, s); err != nil { // files may have been changed by hand
		return Status{}, err
	}
	if s, err = m.read(ctx); err != nil {
		return Status{}, err
	}
	out := Status{Self: m.Name}
	for _, set := range m.Sets {
		one, err := m.statusOf(set, s)
		if err != nil {
			return out, err
		}
		out.Sets = append(out.Sets, one)
	}
	return out, nil
}

func (m *Member) statusOf(set Set, s state) (SetStatus, error) {
	out := SetStatus{Name: set.Name}
	files, err := set.Read()
	if err != nil {
		return out, err
	}
	out.Digest = digest(files)
	out.Generation = s.generations[set.Name]
	if r, ok := s.believed(set.Name); ok {
		ahead := m.ahead(r, out.Digest, s)
		out.Step, out.Generation, out.Since = r.Step, r.Generation, r.Since
		if !ahead {
			out.Digest = r.Digest
		}
	}
	for _, name := range m.mustFollow(s) {
		n, known, signed := s.told(name)
		switch {
		case !known:
			out.Behind = append(out.Behind, Behind{name, "it has told nothing yet: it is down, or of an earlier version"})
		case !signed:
			out.Behind = append(out.Behind, Behind{name, "no CA of now has signed what it has told: it is down, or of an earlier version"})
		case n.Failed[set.Name] != "":
			out.Behind = append(out.Behind, Behind{name, n.Failed[set.Name]})
		case n.Uses[set.Name] != out.Digest:
			out.Behind = append(out.Behind, Behind{name, "it has others: it is down, or its files were changed by hand"})
		default:
			out.Followed = append(out.Followed, name)
		}
	}
	return out, nil
}

// ahead tells whether the files here count more than a record: the store was restored from
// a snapshot that is older, or all have taken the record's step and were then given others
// by hand, all the same.
func (m *Member) ahead(r record, own string, s state) bool {
	if r.Generation < s.generations[r.Set] {
		return true
	}
	for _, name := range m.mustFollow(s) {
		n, _, signed := s.told(name)
		if !signed || n.Generations[r.Set] < r.Generation || n.Uses[r.Set] != own {
			return false
		}
	}
	return true
}

// Change takes the next step of a set, which all follow then.
func (m *Member) Change(ctx context.Context, c Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.Sets, func(s Set) bool { return s.Name == c.Set })
	if i < 0 {
		return refusal{http.StatusNotFound, fmt.Sprintf("there are no keys %q", c.Set)}
	}
	s, err := m.read(ctx)
	if err != nil {
		return err
	}
	status, err := m.statusOf(m.Sets[i], s)
	if err != nil {
		return err
	}
	if c.Base != status.Digest {
		return refusal{http.StatusConflict,
			"the files here are not those of the step before: this coordinator is behind, or another takes a step; try again"}
	}
	if len(status.Behind) > 0 && !c.Force {
		var names []string
		for _, b := range status.Behind {
			names = append(names, b.String())
		}
		return refusal{http.StatusConflict, "coordinators are behind, and would be without the keys that others use: " +
			strings.Join(names, "; ")}
	}
	if err := m.Sets[i].Check(c.Files); err != nil {
		return refusal{http.StatusBadRequest, fmt.Sprintf("keys %s cannot be used: %v", c.Set, err)}
	}
	r := record{
		Set: c.Set, Step: c.Step, Generation: m.latest(c.Set, s) + 1, Since: time.Now().UTC().Truncate(time.Second),
		Digest: digest(c.Files),
	}
	if err := m.seal(&r, c.Files, s); err != nil {
		return err
	}
	if c.Files[pki.CAFile] != nil {
		if err := m.signMore(ctx, s); err != nil {
			return err // else who comes later would not believe what the CA that goes has signed
		}
	}
	if err := m.put(ctx, r, s); err != nil {
		return err
	}
	select {
	case m.waker() <- struct{}{}:
	default:
	}
	return nil
}

// latest is the highest generation that anybody has seen: after a restore of the store
// the records may be older than the files.
func (m *Member) latest(set string, s state) int64 {
	latest := s.generations[set]
	if r, ok := s.believed(set); ok {
		latest = max(latest, r.Generation)
	}
	for name := range s.members {
		if n, _, signed := s.told(name); signed && s.possible(set, n.Generations[set]) {
			latest = max(latest, n.Generations[set])
		}
	}
	return latest
}

// seal signs a step and seals its files to all coordinators that the CA vouches for.
// Those that were removed are not among them.
func (m *Member) seal(r *record, files pki.Files, s state) error {
	var err error
	if r.Signatures, err = sign(s.cas, r.text()); err != nil {
		return err
	}
	for _, name := range m.mustFollow(s) {
		if n, _, signed := s.told(name); signed {
			if err := r.seal(files, n); err != nil {
				return fmt.Errorf("seal keys to %s: %w", name, err)
			}
		}
	}
	if r.Sealed[m.Name] == nil {
		return refusal{http.StatusServiceUnavailable, "this coordinator has not told its key yet; try again"}
	}
	return nil
}

// Forget removes the note of a coordinator that is out of the cluster. If it runs it
// writes it again.
func (m *Member) Forget(ctx context.Context, name string) error {
	return m.Notes.Delete(ctx, memberPrefix+name)
}
