package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/storage/wal"
)

// An etcd that is killed in the first moments of its first start leaves a log without
// the entry that makes it a member of its own cluster, and never elects itself again.
// So a new store has a mark until it is ready, before which nobody is let in: one that
// has the mark still holds nothing, and is begun anew.
const firstMark = "first-start"

// begunMark is there from then on: where it is and no log is, what the store held is lost,
// and beginning anew, without being told to, would have all nodes end their pods.
const begunMark = "begun"

// beginFirst puts the mark on a store that is not there yet, and removes one that never
// got ready.
func beginFirst(dir string) error {
	mark, members := filepath.Join(dir, firstMark), filepath.Join(dir, "member")
	if _, err := os.Stat(mark); err == nil {
		if err := os.RemoveAll(members); err != nil {
			return fmt.Errorf("open store: its first start was cut short; remove what it left: %w", err)
		}
	}
	if wal.Exist(filepath.Join(members, "wal")) {
		return markBegun(dir)
	}
	_, first := os.Stat(mark)
	if _, err := os.Stat(filepath.Join(dir, begunMark)); err == nil && first != nil {
		return explainStart(dir, fmt.Errorf("the log in %s is gone", filepath.Join(members, "wal")))
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	return syncDir(dir)
}

// endFirst takes the mark off, before the first request is let in.
func endFirst(dir string) error {
	if err := markBegun(dir); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(dir, firstMark))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	return syncDir(dir)
}

func markBegun(dir string) error {
	mark := filepath.Join(dir, begunMark)
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer d.Close()
	return d.Sync()
}
