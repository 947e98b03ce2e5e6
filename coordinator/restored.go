package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/members"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/store"
)

// When one coordinator is restored from a snapshot, the others of before join it again:
//
//	restored                                    another, with the store of before
//	shoal snapshot restore
//	  member.json: restored, whom it expects
//	starts ◄── GET /shoal/restored ──────────   asks the members it knows (members.Watch)
//	                                            member.json: rejoin; ends, and starts again
//	       ◄── POST /shoal/rejoin ───────────   asks to be a learner
//	                                            sets its old store aside, copies the new one
//
// Each step may be cut short: the next start begins at the note in member.json.

// rejoin is what a coordinator has to do that was found to have the store of before.
type rejoin struct {
	// At are the URLs of the members of before, of which some were restored, at Time.
	At   []string  `json:"at"`
	Time time.Time `json:"time"`
	// Aside is the old store's new name, beside it.
	Aside string `json:"aside"`
}

// keysSecret is alike at coordinators that have the same keys, and known to nobody else.
// Those between the stores are not in it: they speak to each other by them.
func keysSecret(cfg config.Config) ([]byte, error) {
	files, err := keys(cfg).Shared()
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(string(encryptionFile(cfg)))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's keys: %w", err)
	}
	files["encryption"] = data
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "etcd/") {
			fmt.Fprintf(sum, "%s %d\n%s", name, len(files[name]), files[name])
		}
	}
	return sum.Sum(nil), nil
}

// secretOf is keysSecret, or none at a witness.
func secretOf(cfg config.Config, m *member) func() ([]byte, error) {
	return func() ([]byte, error) {
		if m != nil && m.Witness {
			return nil, nil
		}
		return keysSecret(cfg)
	}
}

// lastRestored reads the restoration that this member has followed.
func lastRestored(cfg config.Config) (*members.Restoration, error) {
	m, err := readMember(cfg)
	if err != nil || m == nil {
		return nil, err
	}
	return m.Restored, nil
}

// again answers members of before. The store is not open yet when it is made.
type again struct {
	*members.Rejoining
	open atomic.Pointer[store.Store]
}

func newAgain(cfg config.Config, witness bool, advertise net.IP, log *slog.Logger) *again {
	a := &again{}
	a.Rejoining = &members.Rejoining{
		Ready: func() (members.RejoinStore, error) {
			if st := a.open.Load(); st != nil {
				return st, nil
			}
			return nil, errors.New("the store is not open yet")
		},
		Last:   func() (*members.Restoration, error) { return lastRestored(cfg) },
		URL:    peerURL(cfg, advertise),
		Secret: secretOf(cfg, &member{Witness: witness}),
		Log:    log,
	}
	return a
}

// peerTime bounds a question to another member; adding one may have to wait for others.
const peerTime = 20 * time.Second

// peerClient speaks to other members as this one.
func peerClient(p store.Peers) (c *http.Client, done func(), err error) {
	t, err := p.ClientTLS()
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{TLSClientConfig: t}
	return &http.Client{Transport: transport, Timeout: peerTime}, transport.CloseIdleConnections, nil
}

// whileNotRestored runs do, and ends it when another member turns out to have been
// restored: with an error then, after which a start joins that one.
func whileNotRestored(
	ctx context.Context, cfg config.Config, st *store.Store, p store.Peers, log *slog.Logger,
	do func(context.Context) error,
) error {
	client, done, err := peerClient(p)
	if err != nil {
		return err
	}
	defer done()
	m, err := readMember(cfg)
	if err != nil {
		return err
	}
	w := &members.Watch{
		Store: st, Client: client, Log: log, Secret: secretOf(cfg, m),
		Last: func() (*members.Restoration, error) { return lastRestored(cfg) },
	}
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan error, 1)
	go func() {
		defer cancel()
		defer close(found)
		if r := w.Run(ctx); r != nil {
			found <- noteRejoin(cfg, *r, time.Now())
		}
	}()
	err = do(ctx)
	cancel()
	if restored := <-found; restored != nil {
		return restored
	}
	return err
}

// watchRestored ends this coordinator when the cluster was restored without it. While it
// is the only one, nobody is asked.
func (s parts) watchRestored(ctx context.Context) error {
	if !s.store.Several() {
		select {
		case <-s.grown:
		case <-ctx.Done():
			return nil
		}
	}
	p, err := s.peers()
	if err != nil {
		return err
	}
	return whileNotRestored(ctx, s.cfg, s.store, p, s.log, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
}

// noteRejoin has the next start join a member that was restored.
func noteRejoin(cfg config.Config, r members.Restored, now time.Time) error {
	m, err := readMember(cfg)
	if err != nil {
		return err
	}
	if m == nil {
		m = &member{Name: memberName(cfg)}
	}
	aside := "etcd.before-" + now.UTC().Format("20060102T150405Z")
	m.Rejoin = &rejoin{At: r.Others, Time: r.Time, Aside: aside}
	if err := m.write(cfg); err != nil {
		return err
	}
	return fmt.Errorf("the cluster was restored from a snapshot on %s (%s) at %s: this coordinator ends, and joins it "+
		"again at its next start, with its own store set aside as %s", r.Name, r.URL, r.Time.Format(time.RFC3339),
		filepath.Join(cfg.StateDir(), aside))
}

// joinAgain has a coordinator that is to rejoin do so, as far as before its store opens.
func joinAgain(
	ctx context.Context, cfg config.Config, m *member, advertise net.IP, manager process.ServiceManager,
	log *slog.Logger,
) error {
	if m == nil || m.Rejoin == nil {
		return nil
	}
	p, err := peersOf(cfg, *m, advertise)
	if err != nil {
		return err
	}
	client, done, err := peerClient(p)
	if err != nil {
		return err
	}
	defer done()
	secret, err := secretOf(cfg, m)()
	if err != nil {
		return err
	}
	at, err := askAgain(ctx, manager, log, func() ([]string, error) {
		return members.Rejoin(ctx, client, m.Rejoin.At, members.Expected{Name: p.Name, URL: p.URL}, secret)
	})
	votes := errors.Is(err, members.ErrVotes)
	if err != nil && !votes {
		return err
	}
	if err := setAside(filepath.Join(cfg.StateDir(), "etcd"), m.Rejoin.Aside, votes, log); err != nil {
		return err
	}
	if !votes {
		m.Join = at
	}
	return m.write(cfg)
}

// askAgain asks until a restored member lets this one in: one at a time may join, and
// that member may be down for a while.
func askAgain(
	ctx context.Context, manager process.ServiceManager, log *slog.Logger, ask func() ([]string, error),
) ([]string, error) {
	told := ""
	for {
		join, err := ask()
		if err == nil || errors.Is(err, members.ErrVotes) || ctx.Err() != nil {
			return join, err
		}
		if told != err.Error() {
			told = err.Error()
			log.Warn("this coordinator is to join the restored one, which does not let it in yet", "err", err)
		}
		manager.Starting(longer)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Second): // nothing tells when its turn is
		}
	}
}

// setAside makes room for the store of the cluster that was restored. What was begun of
// that is deleted, unless it votes: then it is whole.
func setAside(dir, aside string, votes bool, log *slog.Logger) error {
	kept := filepath.Join(filepath.Dir(dir), aside)
	_, err := os.Stat(kept)
	switch {
	case err == nil && votes:
		return nil
	case err == nil:
		return os.RemoveAll(dir)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case votes:
		return fmt.Errorf("the restored cluster has a member at this address, and it is not this one, whose store of "+
			"before is in %s: remove that one (shoal coordinators remove), move %s away, and join again", dir, dir)
	}
	if err := os.Rename(dir, kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set the store of before aside: %w", err)
	}
	log.Warn("the store of before is set aside: delete it when all is well", "kept", kept)
	return pki.Dir(filepath.Dir(dir)).Sync()
}

// joinedAgain notes that a rejoin is done.
func joinedAgain(cfg config.Config, m *member) error {
	if m == nil || m.Rejoin == nil {
		return nil
	}
	m.Restored = &members.Restoration{Time: m.Rejoin.Time}
	m.Rejoin = nil
	return m.write(cfg)
}

// expected are members of before the restore that this coordinator lets in.
func (s *parts) expected() []members.Expected {
	last, err := lastRestored(s.cfg)
	if err != nil || last == nil {
		return nil
	}
	return last.Expects
}

// unexpect forgets one of a name.
func (s *parts) unexpect(name string) error {
	m, err := readMember(s.cfg)
	if err != nil || m == nil || m.Restored == nil {
		return err
	}
	m.Restored.Expects = slices.DeleteFunc(m.Restored.Expects, func(e members.Expected) bool { return e.Name == name })
	return m.write(s.cfg)
}

// othersOf are the members that a restored store leaves behind.
func othersOf(cfg config.Config, file, name string) (out []members.Expected, err error) {
	saved, err := store.SavedMembers(filepath.Join(cfg.StateDir(), "etcd"), file)
	for _, m := range saved {
		if m.Name != name {
			out = append(out, members.Expected{Name: m.Name, URL: m.URL})
		}
	}
	return out, err
}

// refuseWhileOthersRun fails where others serve the store of now.
func refuseWhileOthersRun(ctx context.Context, cfg config.Config, others []members.Expected) error {
	if len(others) == 0 {
		return nil
	}
	advertise, err := advertiseAddress(cfg)
	if err != nil {
		return err
	}
	lifetime := time.Duration(cfg.ClusterSigningDuration)
	if err := keys(cfg).EnsurePeer([]net.IP{advertise}, lifetime, time.Now()); err != nil {
		return err
	}
	var running []string
	for _, o := range others {
		if reaches(ctx, keys(cfg), o.URL) {
			running = append(running, strings.TrimPrefix(o.Name, members.WitnessPrefix)+" ("+o.URL+")")
		}
	}
	if len(running) == 0 {
		return nil
	}
	return fmt.Errorf("%s run with the state of now, and would set it aside and join this machine, with that of the "+
		"snapshot. To go back with all, stop them first, or give --force. To have only this machine's copy made anew: "+
		"shoal join --coordinator --replace", strings.Join(running, ", "))
}
