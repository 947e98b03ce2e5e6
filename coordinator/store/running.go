package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// embedded is the etcd in this process and how requests reach it. When the only
// member of a store becomes one of several (Grow), etcd has to be started again, with
// other timing and with certificates: requests wait meanwhile, and watches that end go
// on with the next one from where they were.
type embedded struct {
	cfg  Config
	disk *space
	// lost is closed when etcd has ended by itself, for the reason why.
	lost chan struct{}
	once sync.Once
	why  error

	// mu is held for reading by each request, and for writing while etcd is stopped.
	mu     sync.RWMutex
	run    *running
	closed bool
}

// running is one start of etcd.
type running struct {
	etcd   *embed.Etcd
	client *clientv3.Client // of this start: in the process, without a socket
	peers  *peerServer      // nil for the only member
	ready  atomic.Bool
}

// ErrRemoved is of a member that the others have removed.
var ErrRemoved = errors.New("this coordinator was removed from the cluster")

// start starts etcd; mu is held, or nobody else has e yet.
func (e *embedded) start() error {
	if err := checkFiles(e.cfg.Dir); err != nil {
		return explainStart(e.cfg.Dir, err)
	}
	attempt := &starting{fatal: make(chan error, 1)}
	cfg, err := embedConfig(e.cfg, attempt.options()...)
	if err != nil {
		return err
	}
	if e.cfg.Peers == nil {
		if err := beginFirst(e.cfg.Dir); err != nil {
			return err
		}
	}
	server, err := attempt.run(cfg)
	if err != nil {
		return explainStart(e.cfg.Dir, err)
	}
	r := &running{etcd: server, client: v3client.New(server.Server)}
	if e.cfg.Peers != nil {
		if r.peers, err = servePeers(server.Server, *e.cfg.Peers, e.cfg.Log); err != nil {
			r.close()
			return err
		}
	}
	go electSelf(server.Server)
	e.run = r
	go e.follow(r)
	return nil
}

func explainStart(dir string, err error) error {
	return fmt.Errorf(
		"open store in %s: %w (if the files are damaged: `shoal snapshot restore` of the newest that `shoal snapshot list` shows; where other "+
			"coordinators live, `shoal join --coordinator --replace`; or move the directory away to start an empty cluster)",
		dir, err)
}

// follow tells what ended a start of etcd, unless it was ended by us.
func (e *embedded) follow(r *running) {
	var err error
	select {
	case err = <-r.etcd.Err():
	case <-r.etcd.Server.StopNotify():
	}
	e.mu.RLock()
	ours, peers := e.closed || e.run != r, e.cfg.Peers
	e.mu.RUnlock()
	if ours {
		return
	}
	if r.removed(peers) {
		err = ErrRemoved
	}
	e.lose(cmp.Or(err, errStopped))
}

// lose notes why etcd has ended.
func (e *embedded) lose(why error) {
	e.once.Do(func() {
		e.why = why
		close(e.lost)
	})
}

// removed tells whether the others have taken an ended member out. It has not always
// heard that from raft: they may close their connections before that comes, and refuse
// new ones.
func (r *running) removed(peers *Peers) bool {
	server := r.etcd.Server
	id := server.MemberID()
	if server.IsIDRemoved(uint64(id)) {
		return true
	}
	if peers == nil {
		return false
	}
	for _, m := range server.Cluster().Members() {
		if m.ID == id {
			continue
		}
		now, err := peers.askMembers(m.PeerURLs)
		if err == nil && !slices.ContainsFunc(now, func(m *membership.Member) bool { return m.ID == id }) {
			return true
		}
	}
	return false
}

// current is etcd as it runs now. Who asks it something holds it by acquire.
func (e *embedded) current() *running {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.run
}

// inUse is how much of the database's file is in use, in bytes; 0: not known.
func (e *embedded) inUse() int64 {
	if r := e.current(); r != nil {
		return r.etcd.Server.Backend().SizeInUse()
	}
	return 0
}

// acquire is current for the time of a request, which etcd's next start waits for.
func (e *embedded) acquire() (r *running, release func()) {
	e.mu.RLock()
	return e.run, e.mu.RUnlock
}

// restart ends etcd and starts it with another configuration, or with the old one
// when that fails.
func (e *embedded) restart(change func(*Config)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errStopped
	}
	old := e.cfg
	last := e.run
	e.run = nil
	last.close()
	change(&e.cfg)
	err := e.start()
	if err == nil {
		return nil
	}
	e.cfg = old
	if again := e.start(); again != nil {
		e.run = last // stopped: each request fails from now on
		e.lose(again)
	}
	return err
}

// close ends etcd. When it has ended by itself, close returns after the reason is known.
func (e *embedded) close() {
	e.mu.RLock()
	closed, run := e.closed, e.run
	e.mu.RUnlock()
	if closed {
		return
	}
	select {
	case <-run.etcd.Server.StoppingNotify():
		<-e.lost
	default:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.run.close()
}

// close ends the connections last: by them a leader hands over.
func (r *running) close() {
	_ = r.client.Close() // of a context that was ours to cancel
	r.etcd.Close()
	r.peers.close()
}

// front is the client that the library uses: each request goes to the etcd that
// runs by then.
func (e *embedded) front() *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(e.run.etcd.Server.Logger()))
	c.KV, c.Watcher, c.Lease = frontKV{e}, frontWatcher{e}, frontLease{e}
	return c
}
