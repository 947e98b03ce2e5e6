package store

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// Cluster names the cluster of members that this store belongs to; a restored store is
// another one.
func (s *Store) Cluster() string {
	if s.etcd == nil {
		return ""
	}
	return strconv.FormatUint(uint64(s.etcd.current().etcd.Server.Cluster().ID()), 16)
}

// SavedMembers are those that the store in a directory had when it ran last; where it
// cannot be read, those of a snapshot. Members that never started are not among them, nor the
// only one of a store that never had others.
func SavedMembers(dir, snapshot string) ([]Member, error) {
	members, err := readMembers(filepath.Join(dir, "member", "snap", "db"))
	if err != nil {
		members, err = readMembers(snapshot)
	}
	return members, err
}

// openTime is how long a database may be another process's.
const openTime = time.Second

func readMembers(file string) (out []Member, err error) {
	defer func() {
		if damage := recover(); damage != nil { // bbolt's way to tell of a broken page
			err = fmt.Errorf("read who the members of %s are: %v", file, damage)
		}
	}()
	if _, err := os.Stat(file); err != nil { // bbolt would make it
		return nil, err
	}
	db, err := bolt.Open(file, 0, &bolt.Options{ReadOnly: true, Timeout: openTime})
	if err != nil {
		return nil, fmt.Errorf("read who the members of %s are: %w", file, err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(schema.Members.Name())
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(_, value []byte) error {
			m := membership.Member{}
			if err := json.Unmarshal(value, &m); err != nil {
				return err
			}
			u := strings.Join(m.PeerURLs, ",")
			if m.Name != "" && strings.HasPrefix(u, "https://") {
				out = append(out, Member{ID: uint64(m.ID), Name: m.Name, URL: u, Learner: m.IsLearner})
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read who the members of %s are: %w", file, err)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name+a.URL, b.Name+b.URL) })
	return out, nil
}
