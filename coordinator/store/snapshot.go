package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// Size is how many bytes a snapshot will have, about.
func (s *Store) Size() int64 {
	if s.etcd == nil {
		return 0
	}
	return s.etcd.current().etcd.Server.Backend().Size()
}

// Snapshot writes the embedded store as it is now, in the form of `etcdctl snapshot
// save`: the database, and its SHA-256 behind it. Writes go on meanwhile.
func (s *Store) Snapshot(w io.Writer) error {
	if s.etcd == nil {
		return errors.New("take a snapshot: the etcd is not this coordinator's own: use etcdctl there")
	}
	r, release := s.etcd.acquire()
	defer release()
	snap := r.etcd.Server.Backend().Snapshot()
	defer snap.Close()
	sum := sha256.New()
	if _, err := snap.WriteTo(io.MultiWriter(w, sum)); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	return nil
}

// dbPage is what a database's length is a multiple of.
const dbPage = 512

// VerifySnapshot reads a snapshot whole and compares it with its hash.
func VerifySnapshot(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	body := info.Size() - sha256.Size
	if body <= 0 || body%dbPage != 0 {
		return fmt.Errorf("%s is no snapshot of a store, or not all of it", path)
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, body); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	return compareHash(f, sum, path)
}

func compareHash(f io.Reader, sum hash.Hash, path string) error {
	want := make([]byte, sha256.Size)
	if _, err := io.ReadFull(f, want); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	if string(want) != string(sum.Sum(nil)) {
		return fmt.Errorf("%s is damaged: it does not have its hash; take another", path)
	}
	return nil
}

// revisionBump is added to the revision of what is restored: clients have seen later ones
// than the snapshot's, which must not come again for other objects. It grows with time by
// ten in a millisecond, more than any store is written to, so that a snapshot that is
// restored again, on whichever machine, goes on behind what clients have seen of it since.
func revisionBump(now time.Time) uint64 { return 1_000_000_000 + uint64(max(0, now.UnixMilli()))*10 }

// Restore makes the directory of a store of one member out of a snapshot. A store that
// is there is kept beside it; its new name is returned.
func Restore(path, dir string, now time.Time) (kept string, err error) {
	if err := VerifySnapshot(path); err != nil {
		return "", err
	}
	stamp := now.UTC().Format("20060102T150405Z")
	fresh := dir + ".restored-" + stamp
	peer := "http://127.0.0.1:1" // as joinAlone's: told to no one
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        path,
		Name:                memberName,
		OutputDataDir:       fresh,
		PeerURLs:            []string{peer},
		InitialCluster:      memberName + "=" + peer,
		InitialClusterToken: "shoal-restored-" + stamp, // members of before are no members of this one
		RevisionBump:        revisionBump(now),
		MarkCompacted:       true,
	})
	if err != nil {
		return "", errors.Join(fmt.Errorf("restore %s: %w", path, err), os.RemoveAll(fresh))
	}
	if _, err := os.Stat(dir); err == nil {
		kept = dir + ".before-" + stamp
		if err := os.Rename(dir, kept); err != nil {
			return "", fmt.Errorf("restore %s: %w", path, err)
		}
	}
	if err := os.Rename(fresh, dir); err != nil {
		return kept, fmt.Errorf("restore %s: %w", path, err)
	}
	return kept, syncDir(filepath.Dir(dir))
}
