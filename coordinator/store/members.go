package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
)

// Member is one that holds a copy of the store.
type Member struct {
	ID uint64
	// Name is empty until the member has started for the first time.
	Name string
	// URL is where the others reach it.
	URL string
	// Learner has no vote yet: it is being sent what the others have.
	Learner bool
	// Leads tells that writes go by this one; Self that it is this process's.
	Leads, Self bool
}

// Members lists the embedded store's members, as this one knows them, by name.
func (s *Store) Members() []Member {
	if s.etcd == nil {
		return nil
	}
	server := s.etcd.current().etcd.Server
	var out []Member
	for _, m := range server.Cluster().Members() {
		out = append(out, Member{
			ID:      uint64(m.ID),
			Name:    m.Name,
			URL:     strings.Join(m.PeerURLs, ","),
			Learner: m.IsLearner,
			Leads:   m.ID == server.Leader(),
			Self:    m.ID == server.MemberID(),
		})
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name+a.URL, b.Name+b.URL) })
	return out
}

// missing says which members there are beside this one, for an error that is about
// too few of them.
func (r *running) missing() string {
	var others []string
	for _, m := range r.etcd.Server.Cluster().Members() {
		if m.ID != r.etcd.Server.MemberID() {
			others = append(others, strings.TrimSpace(m.Name+" "+strings.Join(m.PeerURLs, ",")))
		}
	}
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	return " (the other members: " + strings.Join(others, ", ") + ")"
}

// Several tells whether the store may have more than one member: other coordinators
// may write to it, and lead.
func (s *Store) Several() bool { return s.etcd == nil || s.etcd.peers() != nil }

func (e *embedded) peers() *Peers {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.cfg.Peers
}

// Grow lets the only member have others. Requests wait some tenths of a second.
func (s *Store) Grow(ctx context.Context, p Peers) error {
	if s.etcd == nil {
		return errors.New("add a member: the etcd is not this coordinator's own: add one there")
	}
	if err := s.etcd.current().waitReady(ctx); err != nil {
		return fmt.Errorf("add a member: %w", err)
	}
	if s.etcd.peers() == nil {
		if err := s.etcd.restart(func(c *Config) { c.Peers = &p }); err != nil {
			return fmt.Errorf("add a member: %w", err)
		}
	}
	return s.ShowAddress(ctx)
}

// ShowAddress has the others know where this member is reached now, and its name.
func (s *Store) ShowAddress(ctx context.Context) error {
	p := s.etcd.peers()
	if p == nil {
		return nil
	}
	r, release := s.etcd.acquire()
	defer release()
	if err := r.waitReady(ctx); err != nil {
		return err
	}
	server := r.etcd.Server
	own := server.Cluster().Member(server.MemberID())
	if own == nil || slices.Equal(own.PeerURLs, []string{p.URL}) {
		return nil
	}
	err := change(ctx, func(ctx context.Context, _ bool) error {
		_, err := server.UpdateMember(ctx, membership.Member{
			ID: own.ID, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{p.URL}, IsLearner: own.IsLearner},
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("tell the other coordinators the address %s: %w", p.URL, err)
	}
	return nil
}

// changeTime is how long a change of the members may take until it is proposed again.
const changeTime = 3 * time.Second

// change proposes a change of the members until it is answered: raft drops one without a
// word that comes before all is applied that its leader found in its log when it was
// elected, which on a slow disk takes a while. What took long may have been done
// nevertheless, which the next time has to expect.
func change(ctx context.Context, propose func(ctx context.Context, again bool) error) error {
	for again := false; ; again = true {
		once, cancel := context.WithTimeout(ctx, changeTime)
		err := propose(once, again)
		late := once.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late {
			return err
		}
	}
}

// settleTime is how long members that have just met may take until they count as
// connected: etcd adds none before (5 s).
const settleTime = 15 * time.Second

// AddLearner adds a member, which has no vote before it has caught up.
func (s *Store) AddLearner(ctx context.Context, peerURL string) error {
	r, release := s.etcd.acquire()
	defer release()
	server := r.etcd.Server
	urls, err := types.NewURLs([]string{peerURL})
	if err != nil {
		return fmt.Errorf("add member %s: %w", peerURL, err)
	}
	now := time.Now()
	m := membership.NewMemberAsLearner("", urls, "", &now)
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		err := change(ctx, func(ctx context.Context, again bool) error {
			_, err := server.AddMember(ctx, *m)
			if again && errors.Is(err, membership.ErrIDExists) {
				return nil
			}
			return err
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, membership.ErrTooManyLearners):
			return fmt.Errorf("add member %s: another one is joining: wait until it is done, or remove it: %s",
				peerURL, learners(server))
		case !errors.Is(err, etcderrors.ErrUnhealthy) || ctx.Err() != nil:
			return fmt.Errorf("add member %s: %w", peerURL, err)
		}
		select { // no event tells that members are connected for long enough
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func learners(s *etcdserver.EtcdServer) string {
	var out []string
	for _, m := range s.Cluster().Members() {
		if m.IsLearner {
			out = append(out, strings.TrimSpace(m.Name+" "+strings.Join(m.PeerURLs, ",")))
		}
	}
	return strings.Join(out, "; ")
}

// Remove takes a member out, which ends it. etcd refuses what would leave too few of
// those that live.
func (s *Store) Remove(ctx context.Context, id uint64) error {
	r, release := s.etcd.acquire()
	defer release()
	err := change(ctx, func(ctx context.Context, again bool) error {
		_, err := r.etcd.Server.RemoveMember(ctx, id)
		if again && (errors.Is(err, membership.ErrIDRemoved) || errors.Is(err, membership.ErrIDNotFound)) {
			return nil
		}
		return err
	})
	if errors.Is(err, etcderrors.ErrNotEnoughStartedMembers) || errors.Is(err, etcderrors.ErrUnhealthy) {
		return fmt.Errorf("%w: without it too few of the members that live would be left to agree; start the others first",
			err)
	}
	return err
}

// promoteEvery is how often a learner asks for its vote: nothing tells it that the
// leader finds it ready.
const promoteEvery = 300 * time.Millisecond

// Vote returns when this member has a vote. A new one first gets what the others have,
// and any needs some of the others: both may take long. Meanwhile waits is called again
// and again.
func (s *Store) Vote(ctx context.Context, waits func()) error {
	if s.etcd == nil {
		return nil
	}
	r := s.etcd.current()
	server := r.etcd.Server
	for {
		select {
		case <-s.Lost():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-server.ReadyNotify():
			// Before that it has not heard of the others, and does not know what it is.
			if !server.IsLearner() {
				return r.waitReady(ctx)
			}
			_, _ = server.PromoteMember(ctx, uint64(server.MemberID())) // refused until it is ready
			sleep(ctx, promoteEvery)
		case <-time.After(promoteEvery):
		}
		waits()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Inactive are learners that have not been heard of lately. Only the member that
// leads the store knows; others return none.
func (s *Store) Inactive() (out []Member) {
	if s.etcd == nil {
		return nil
	}
	status, ok := raftStatus()
	if !ok {
		return nil
	}
	for _, m := range s.Members() {
		progress, known := status.Progress[m.ID]
		if m.Learner && known && !progress.RecentActive {
			out = append(out, m)
		}
	}
	return out
}
