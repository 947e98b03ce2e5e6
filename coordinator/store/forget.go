package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

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
	head, err := s.client.Client.Get(ctx, compactRevKey, clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("compact the store: %w", err)
	}
	rev := head.Header.Revision
	_, err = s.client.Client.Put(ctx, compactRevKey, strconv.FormatInt(rev, 10))
	if err == nil {
		_, err = s.client.Compact(ctx, rev, clientv3.WithCompactPhysical())
	}
	if err != nil {
		return fmt.Errorf("compact the store: %w", err)
	}
	if err := s.roomForCopy(); err != nil {
		return err
	}
	r, release := s.etcd.acquire()
	defer release()
	if err := r.etcd.Server.Defragment(); err != nil {
		return fmt.Errorf("defragment the store: %w", err)
	}
	return nil
}

// roomForCopy fails when the disk is too full for a second database's file.
func (s *Store) roomForCopy() error {
	dir := s.etcd.cfg.Dir
	need := s.etcd.current().etcd.Server.Backend().SizeInUse() + spaceToCreate
	if free, err := freeBytes(dir); err == nil && free < need {
		return fmt.Errorf("defragment the store: %s has %s free and needs %s: free some space on its file system",
			dir, mebibytes(free), mebibytes(need))
	}
	return nil
}
