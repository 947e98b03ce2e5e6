package store

import (
	"context"
	"expvar"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// The embedded etcd as the only member of its cluster, and all that follows from that.
// With others (Config.Peers, members.go) it listens for them, ticks as etcd does by
// itself, and keeps in memory what a follower that lags has to be sent.
const (
	memberName = "shoal"
	// It has nobody to send a heartbeat to: a tick is for nothing, and long.
	tickMs, electMs = 1000, 5000
	// Entries kept in memory for followers that lag; there are none.
	catchUpEntries = 200
)

// Alone tells whether no other process can write to the store: the embedded etcd is
// the only member, and serves nobody but this process.
func (s *Store) Alone() bool {
	return s.etcd != nil && len(s.etcd.current().etcd.Server.Cluster().Members()) == 1
}

// joinAlone makes a configuration that of a cluster's only member.
func joinAlone(c *embed.Config) {
	nobody := url.URL{Scheme: "http", Host: "127.0.0.1:1"} // advertised to no one
	c.Name = memberName
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{nobody}
	c.InitialCluster = memberName + "=" + nobody.String()
	c.TickMs, c.ElectionMs = tickMs, electMs
	c.SnapshotCatchUpEntries = catchUpEntries
}

// electSelf makes the only member of a cluster the leader at once. Left alone it
// waits for an election's timeout, five ticks and more; asked, it needs no tick,
// and a tick may be long (see tickMs). raft takes the request as the one that a
// leader sends who hands over: MsgTimeoutNow. It returns when there is a leader,
// or when raft elects one by itself in time.
func electSelf(s *etcdserver.EtcdServer) {
	if len(s.Cluster().Members()) != 1 {
		return
	}
	id := uint64(s.MemberID())
	// raft refuses until the log's changes of the membership are applied, and no
	// event tells of that. It must not be asked before it knows that all of the
	// log is applied: it would look into entries that may be compacted already.
	for range electMs * time.Millisecond / electRetry {
		if s.Leader() != 0 {
			return
		}
		if !replayed() {
			time.Sleep(electRetry)
			continue
		}
		_ = s.Process(context.Background(), raftpb.Message{Type: raftpb.MsgTimeoutNow, To: id, From: id})
		select {
		case <-s.ReadyNotify():
			return
		case <-s.StopNotify():
			return
		case <-time.After(electRetry):
		}
	}
}

// replayed tells whether raft has applied all that its log says is committed.
func replayed() bool {
	status, ok := raftStatus()
	return ok && status.Commit > 0 && status.Applied >= status.Commit
}

// raftStatus is raft's own view, which etcd publishes nowhere else; it is that of the
// server that was started last in this process.
func raftStatus() (status raft.Status, ok bool) {
	f, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return status, false
	}
	status, ok = f.Value().(raft.Status)
	return status, ok
}

const electRetry = 2 * time.Millisecond
