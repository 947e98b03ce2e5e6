package store

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// etcd ends when a write to its files fails, and with it all reads. So writes
// are refused before the disk is full: new objects first, then changes. Two
// segments of the log fit below the first limit.
const (
	spaceToCreate = 2*segmentBytes + 8<<20
	spaceToUpdate = segmentBytes
	segmentBytes  = 16 << 20
	reserveEvery  = 256 // writes
)

// vital keys are written as long as etcd can, while their values are small:
// they say who leads and what state nodes are in. Without them a full disk would
// look like nodes that died. Leases of other namespaces are anybody's who may
// edit one, and wait for space like all else.
// The database's compactor notes what it does, too.
var vital = []string{
	compactRevKey, prefix + "/leases/kube-node-lease/", prefix + "/leases/kube-system/shoal-coordinator",
	prefix + "/minions/",
}

// vitalBytes is the largest value of a vital key: a Node that lists 50 images
// takes less than half of it.
const vitalBytes = 64 << 10

// space watches the file system that etcd writes to.
type space struct {
	dir  string
	log  *slog.Logger
	free func(dir string) (int64, error) // in bytes
	low  atomic.Bool                     // told, and not over yet
	// quota is the database's largest size, inUse how much of it has content, in bytes.
	quota int64
	inUse func() int64
	full  atomic.Bool // as low, of the quota

	writes atomic.Uint64
}

func newSpace(dir string, log *slog.Logger) *space {
	return &space{dir: dir, log: log, free: freeBytes}
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// allow returns the error that refuses a write; need is a limit of above.
func (s *space) allow(need int64) error {
	if s.writes.Add(1)%reserveEvery == 1 {
		s.reserve()
	}
	if s.room() < need {
		return s.noRoom()
	}
	free, err := s.free(s.dir)
	if err != nil {
		return nil // what is wrong there shows when etcd writes
	}
	if free >= need {
		if free >= spaceToCreate && s.low.CompareAndSwap(true, false) {
			s.log.Info("there is space on the disk again: all writes are taken", "dir", s.dir, "free", mebibytes(free))
		}
		return nil
	}
	if s.low.CompareAndSwap(false, true) {
		s.log.Error("the disk is full: writes are refused, reads and deletions go on; free some space", "dir", s.dir,
			"free", mebibytes(free), "needed", mebibytes(spaceToCreate))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
		Message: fmt.Sprintf("the coordinator's disk is full: %s has %s free and needs %s; free some space on its file system (deletions and reads still work)",
			s.dir, mebibytes(free), mebibytes(need)),
	}}
}

// room is how much the database may grow, in bytes.
func (s *space) room() int64 {
	left := s.quota - s.inUse()
	if left >= spaceToCreate && s.full.CompareAndSwap(true, false) {
		s.log.Info("the store's database has room again: all writes are taken", "left", mebibytes(left))
	}
	return left
}

// crowded tells whether writes were refused for the quota, and would be still.
func (s *space) crowded() bool { return s.full.Load() && s.room() < spaceToCreate }

// noRoom refuses a write for the database's quota.
func (s *space) noRoom() error {
	if s.full.CompareAndSwap(false, true) {
		s.log.Error("the store's database is full: writes are refused, reads and deletions go on; delete what is not needed",
			"inUse", mebibytes(s.inUse()), "quota", mebibytes(s.quota))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
		Message: fmt.Sprintf("the coordinators' store is full: %s of %s are in use; delete objects that are not needed (deletions and reads still work)",
			mebibytes(s.inUse()), mebibytes(s.quota)),
	}}
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// reserve gives the database's file the blocks of its whole length, of which
// bbolt leaves holes: then a full disk does not keep etcd from writing what is
// small. Best effort: etcd tells what fails.
func (s *space) reserve() {
	f, err := os.OpenFile(filepath.Join(s.dir, "member", "snap", "db"), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Blocks*512 < st.Size {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, st.Size)
	}
}

// careful is a transaction that is not sent when there is no space for it.
type careful struct {
	clientv3.Txn
	space   *space
	creates bool
	refused error
}

func (t *careful) If(conditions ...clientv3.Cmp) clientv3.Txn {
	for i := range conditions {
		c := (*etcdserverpb.Compare)(&conditions[i])
		// A key at revision 0 is one that does not exist.
		if c.Target == etcdserverpb.Compare_MOD && c.Result == etcdserverpb.Compare_EQUAL && c.GetModRevision() == 0 {
			t.creates = true
		}
	}
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *careful) Then(ops ...clientv3.Op) clientv3.Txn {
	need := int64(spaceToUpdate)
	if t.creates {
		need = spaceToCreate
	}
	for i := range ops {
		if ops[i].IsPut() && !isVital(&ops[i]) && t.refused == nil {
			t.refused = t.space.allow(need)
		}
	}
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *careful) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *careful) Commit() (*clientv3.TxnResponse, error) {
	if t.refused != nil {
		return nil, t.refused
	}
	r, err := t.Txn.Commit()
	if noRoom(err) {
		return nil, t.space.noRoom()
	}
	return r, err
}

func isVital(op *clientv3.Op) bool {
	if len(op.ValueBytes()) > vitalBytes {
		return false
	}
	key := string(op.KeyBytes())
	for _, v := range vital {
		if key == v || strings.HasSuffix(v, "/") && strings.HasPrefix(key, v) {
			return true
		}
	}
	return false
}
