package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactRevKey is what the API server's library notes the last compaction under:
// its compactor leaves one out when somebody else has written it.
const compactRevKey = "compact_rev_key"

// Embedded tells whether the state is in this process's own etcd.
func (s *Store) Embedded() bool { return s.etcd != nil }

// Forget drops old versions of all keys, and writes the database's file anew, so
// that nothing of them is left in it; requests wait meanwhile. Lists that clients
// have begun expire. The log (member/wal) keeps what was written lately.
func (s *Store) Forget(ctx context.Context) error {
	if s.etcd == nil {
		return errors.New("the etcd is not this coordinator's own: have its members compact and defragment")
	}
	if err := s.dropHistory(ctx); err != nil {
		return err
	}
	r, release := s.etcd.acquire()
	defer release()
	return r.defragment(s.etcd.disk.dir)
}

// dropHistory drops old versions of all keys.
func (s *Store) dropHistory(ctx context.Context) error {
	head, err := s.client.Client.Get(ctx, compactRevKey, clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("compact the store: %w", err)
	}
	rev := head.Header.Revision
	// An etcd that refuses writes may be compacted all the same.
	if _, err = s.client.Client.Put(ctx, compactRevKey, strconv.FormatInt(rev, 10)); err == nil || noRoom(err) {
		_, err = s.client.Compact(ctx, rev, clientv3.WithCompactPhysical())
	}
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact the store: %w", err)
	}
	return nil
}

// defragment writes the database's file anew, if the disk has space for a second one.
func (r *running) defragment(dir string) error {
	need := r.etcd.Server.Backend().SizeInUse() + spaceToCreate
	if free, err := freeBytes(dir); err == nil && free < need {
		return fmt.Errorf("defragment the store: %s has %s free and needs %s: free some space on its file system",
			dir, mebibytes(free), mebibytes(need))
	}
	if err := r.etcd.Server.Defragment(); err != nil {
		return fmt.Errorf("defragment the store: %w", err)
	}
	return nil
}
