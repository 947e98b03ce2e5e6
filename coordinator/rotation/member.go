package rotation

import (
	"context"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/store"
)

// Set are keys that change together.
type Set struct {
	Name string
	// Read returns the files as they are.
	Read func() (pki.Files, error)
	// Check fails for files that cannot be used: they would be written nowhere, and what
	// is once in the store all follow.
	Check func(pki.Files) error
	// Use writes them, and has this process use them.
	Use func(pki.Files) error
}

// Member is this coordinator among those that have keys alike.
type Member struct {
	Name  string
	Notes Notes
	Dir   pki.Dir
	// Sets in the order in which a coordinator that was away takes them over: the CA's
	// is first, which vouches for the others.
	Sets []Set
	// Must returns the names of all that have to follow beside this one; nil: all that
	// have a note.
	Must func() []string
	// Shown returns whom a request's client certificate names, if a CA of now has signed
	// it; nil: nobody is served over HTTP.
	Shown func(*http.Request) (user.Info, bool)
	Log   *slog.Logger

	mu     sync.Mutex
	key    hpke.PrivateKey
	failed map[string]string
	wake   chan struct{}
}

// generationsFile tells which steps were taken here, so that an older one, which was
// signed too, is not taken again.
const generationsFile = "generations.json"

const (
	// firstPause and lastPause are between attempts at what failed.
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// catchUpTime bounds how long a start waits for what was rotated while this coordinator
// was down.
const catchUpTime = 10 * time.Second

// CatchUp takes over, before anybody is served, what changed while this coordinator was
// down. What fails Run tries again, and tells.
func (m *Member) CatchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	if err := m.look(ctx); err != nil && ctx.Err() == nil {
		m.Log.Debug("keys are not followed yet", "err", err)
	}
}

// lookAtFiles is how often it is looked whether files were changed by hand.
const lookAtFiles = time.Minute

// Run follows the notes until ctx ends.
func (m *Member) Run(ctx context.Context) {
	m.mu.Lock()
	wake := m.waker()
	m.mu.Unlock()
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		for ctx.Err() == nil {
			_ = m.Notes.Follow(ctx, poke) // it looks at once when it watches again
			select {
			case <-ctx.Done():
			case <-time.After(firstPause):
			}
		}
	})
	told, pause := "", firstPause
	for {
		err := m.look(ctx)
		again := time.After(lookAtFiles)
		if err == nil {
			told, pause = "", firstPause
		} else if ctx.Err() == nil {
			if told != err.Error() {
				told = err.Error()
				m.Log.Warn("keys of the cluster are not followed; the ones before stay in use", "err", err)
			}
			again = time.After(pause)
			pause = min(2*pause, lastPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-again:
		}
	}
}

func (m *Member) waker() chan struct{} {
	if m.wake == nil {
		m.wake = make(chan struct{}, 1)
	}
	return m.wake
}

// look takes over what the notes say, and notes what is in use here.
func (m *Member) look(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.read(ctx)
	if err != nil {
		return err
	}
	var failed []error
	if m.failed == nil {
		m.failed = map[string]string{}
	}
	for _, set := range m.Sets {
		err := m.take(set, s)
		delete(m.failed, set.Name)
		if err != nil {
			m.failed[set.Name] = err.Error()
			failed = append(failed, fmt.Errorf("%s: %w", set.Name, err))
		}
		if s.cas, err = m.cas(); err != nil { // they may be others now
			return errors.Join(append(failed, err)...)
		}
	}
	failed = append(failed, m.signMore(ctx, s), m.tell(ctx, s), m.sealMore(ctx, s))
	return errors.Join(failed...)
}

// take takes over one set's files if there are newer ones.
func (m *Member) take(set Set, s state) error {
	r, known := s.sets[set.Name]
	if !known {
		return nil
	}
	generations := s.generations
	if r.Generation <= generations[set.Name] && m.failed[set.Name] == "" {
		return nil
	}
	have, err := set.Read()
	if err != nil {
		return err
	}
	same := digest(have) == r.Digest && m.failed[set.Name] == ""
	if _, ok := s.believed(set.Name); !ok {
		switch {
		case same:
			return nil // there is nothing to take, and nothing of it counts
		case !s.possible(set.Name, r.Generation):
			return fmt.Errorf("the new keys are said to be those of step %d, and this coordinator is at %d: that cannot be",
				r.Generation, generations[set.Name])
		}
		return errors.New("no CA that this coordinator believes has signed the new keys: if a rotation of the CA went on without it, " +
			"have it join again: shoal join --coordinator --replace")
	}
	if !same {
		if r.Generation < generations[set.Name] {
			return nil
		}
		files, err := m.open(r)
		if err != nil {
			return err
		}
		if err := set.Check(files); err != nil {
			return err
		}
		if err := set.Use(files); err != nil {
			return err
		}
		m.Log.Info("keys taken over", "set", set.Name, "step", r.Step, "generation", r.Generation)
	}
	generations = maps.Clone(generations)
	generations[set.Name] = r.Generation
	data, err := json.Marshal(generations)
	if err != nil {
		return err
	}
	if err := pki.WriteFile(m.Dir.Path(generationsFile), data, 0o600); err != nil {
		return err
	}
	if err := m.Dir.Sync(); err != nil {
		return err
	}
	s.generations[set.Name] = r.Generation
	return nil
}

// open decrypts the files of a record that was found to be believed.
func (m *Member) open(r record) (pki.Files, error) {
	sealed := r.Sealed[m.Name]
	if sealed == nil {
		return nil, errors.New("the new keys are not sealed to this coordinator yet; another that has them does so")
	}
	if err := m.loadKey(); err != nil {
		return nil, err
	}
	files, err := open(m.key, r.text(), sealed)
	if err != nil {
		return nil, err
	}
	if digest(files) != r.Digest {
		return nil, errors.New("the sealed keys are others than the ones that were signed")
	}
	return files, nil
}

func (m *Member) cas() (pki.Files, error) { return m.Dir.ReadFiles(pki.CAs.Files...) }

func (m *Member) loadKey() error {
	if m.key != nil {
		return nil
	}
	key, err := ownKey(m.Dir)
	if err != nil {
		return err
	}
	m.key = key
	return nil
}

func (m *Member) generations() (map[string]int64, error) {
	out := map[string]int64{}
	data, err := os.ReadFile(m.Dir.Path(generationsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", m.Dir.Path(generationsFile), err)
	}
	return out, nil
}

// tell writes this coordinator's note, if it says something new.
func (m *Member) tell(ctx context.Context, s state) error {
	own, err := m.note()
	if err != nil {
		return err
	}
	old := s.members[m.Name]
	own.Signatures = old.Signatures
	text, err := own.text()
	if err != nil {
		return err
	}
	if signedByFirst(s.cas, text, own.Signatures) && reflect.DeepEqual(own, old) {
		return nil
	}
	if own.Signatures, err = sign(s.cas, text); err != nil {
		return err
	}
	data, err := json.Marshal(own)
	if err != nil {
		return err
	}
	name := memberPrefix + m.Name
	return unlessChanged(m.Notes.Put(ctx, name, data, s.revisions[name]))
}

// unlessChanged drops the error of a race that another won: the watch tells of it.
func unlessChanged(err error) error {
	if errors.Is(err, store.ErrChanged) {
		return nil
	}
	return err
}

// signedByFirst: the CA that signs now has signed a text, which so outlives the ones
// before.
func signedByFirst(cas pki.Files, text []byte, signatures [][]byte) bool {
	certs, err := cas.Trusted()
	return err == nil && signedBy(certs[0], text, signatures)
}

// signMore has all CAs of now vouch for the records that one of them vouches for: they
// are believed when another CA than the one of their time signs.
func (m *Member) signMore(ctx context.Context, s state) error {
	authorities, err := s.cas.Authorities()
	if err != nil {
		return err
	}
	for _, set := range m.Sets {
		r, ok := s.believed(set.Name)
		missing := func(a *pki.Authority) bool { return !signedBy(a.Cert, r.text(), r.Signatures) }
		if !ok || !slices.ContainsFunc(authorities, missing) {
			continue
		}
		if r.Signatures, err = sign(s.cas, r.text()); err != nil {
			return err
		}
		if err := m.put(ctx, r, s); err != nil {
			return unlessChanged(err)
		}
		again, err := m.read(ctx)
		if err != nil {
			return err
		}
		maps.Copy(s.sets, again.sets)
		maps.Copy(s.revisions, again.revisions)
	}
	return nil
}

// note says what is in use here.
func (m *Member) note() (note, error) {
	n := note{Name: m.Name, Uses: map[string]string{}}
	if err := m.loadKey(); err != nil {
		return n, err
	}
	n.Key = m.key.PublicKey().Bytes()
	var err error
	if n.Generations, err = m.generations(); err != nil {
		return n, err
	}
	for _, set := range m.Sets {
		if m.failed[set.Name] != "" {
			continue // what the files say may not be what is in use
		}
		files, err := set.Read()
		if err != nil {
			return n, err
		}
		n.Uses[set.Name] = digest(files)
	}
	if len(m.failed) > 0 {
		n.Failed = maps.Clone(m.failed)
	}
	return n, nil
}

// sealMore seals what is in use here to coordinators that have it not and cannot open
// it: they came while a step was made, or their key was made anew.
func (m *Member) sealMore(ctx context.Context, s state) error {
	for _, set := range m.Sets {
		r, signed := s.believed(set.Name)
		if !signed || m.failed[set.Name] != "" {
			continue
		}
		files, err := set.Read()
		if err != nil {
			return err
		}
		if digest(files) != r.Digest {
			continue
		}
		added := false
		for _, name := range m.mustFollow(s) {
			other, _, signed := s.told(name)
			if !signed || name == m.Name || other.Uses[set.Name] == r.Digest ||
				r.Sealed[other.Name] != nil && sealedTo(r, other) {
				continue
			}
			if err := r.seal(files, other); err != nil {
				return fmt.Errorf("seal keys to %s: %w", other.Name, err)
			}
			added = true
		}
		if !added {
			continue
		}
		if err := unlessChanged(m.put(ctx, r, s)); err != nil {
			return err
		}
	}
	return nil
}

// put writes a record in the place of the one that was read.
func (m *Member) put(ctx context.Context, r record, s state) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(data) > maxNote { // nobody would read it
		return refusal{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("keys %s take %d bytes in the store, more than %d", r.Set, len(data), maxNote)}
	}
	return m.Notes.Put(ctx, setPrefix+r.Set, data, s.revisions[setPrefix+r.Set])
}

// keyPrint begins what is sealed, to tell for which key it is.
const keyPrint = 8

func (r *record) seal(files pki.Files, to note) error {
	sealed, err := seal(files, r.text(), to.Key)
	if err != nil {
		return err
	}
	if r.Sealed == nil {
		r.Sealed = map[string][]byte{}
	}
	r.Sealed[to.Name] = sealed
	if r.Keys == nil {
		r.Keys = map[string]string{}
	}
	r.Keys[to.Name] = printOf(to.Key)
	return nil
}

func sealedTo(r record, n note) bool { return r.Keys[n.Name] == printOf(n.Key) }

func printOf(key []byte) string { return digest(pki.Files{"": key})[:2*keyPrint] }

// mustFollow are all coordinators that have to, this one among them.
func (m *Member) mustFollow(s state) []string {
	names := []string{m.Name}
	if m.Must != nil {
		names = append(names, m.Must()...)
	} else {
		names = slices.AppendSeq(names, maps.Keys(s.members))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
