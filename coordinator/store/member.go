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

// The embedded etcd is the only member of its cluster, and all that follows from
// that is in this file. With a second one:
//
//   - joinAlone has to say where peers reach this member, and listen there with
//     certificates: etcd's socket for peers asks nobody who they are; and to begin
//     with the members that there are, not with itself.
//   - ticks are heartbeats then, so both lengths have to be etcd's own again, and
//     the log keeps what a follower that lags has to be sent (catchUpEntries).
//   - electSelf does nothing, as it does already: members vote. Alone is false then,
//     and a leader that died is followed when its Lease has ended.
//
// What does not change: clients stay in the process (gate), each member guards its
// own disk (space), and compaction may run on all of them.
const (
	memberName = "shoal"
	// It has nobody to send a heartbeat to: a tick is for nothing, and long.
	tickMs, electMs = 1000, 5000
	// Entries kept in memory for followers that lag; there are none.
	catchUpEntries = 200
)

// Alone tells whether no other process can write to the store: the embedded etcd is
// the only member, and serves nobody but this process.
func (s *Store) Alone() bool { return s.etcd != nil && len(s.etcd.Server.Cluster().Members()) == 1 }

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
// etcd publishes raft's own view nowhere else; it is that of the server that
// was started last in this process.
func replayed() bool {
	f, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	status, ok := f.Value().(raft.Status)
	return ok && status.Commit > 0 && status.Applied >= status.Commit
}

const electRetry = 2 * time.Millisecond
