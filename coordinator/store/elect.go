package store

import (
	"context"
	"expvar"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

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
