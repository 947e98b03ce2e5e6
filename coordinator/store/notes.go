package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrChanged is returned when another has written a note meanwhile.
var ErrChanged = errors.New("another coordinator has changed it meanwhile; try again")

// Notes are small values below one prefix, beside the API's objects, where no
// encryption is asked for: what is secret in them their writers seal.
type Notes struct {
	client *clientv3.Client
	prefix string
}

// Note is a value and the revision at which it was written.
type Note struct {
	Data     []byte
	Revision int64
}

// Notes returns those of a set.
func (s *Store) Notes(set string) *Notes {
	return &Notes{client: s.client.Client, prefix: "/shoal/" + set + "/"}
}

// All returns the notes by their names.
func (n *Notes) All(ctx context.Context) (map[string]Note, error) {
	page, err := n.client.Get(ctx, n.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read store: %w", err)
	}
	out := map[string]Note{}
	for _, kv := range page.Kvs {
		out[strings.TrimPrefix(string(kv.Key), n.prefix)] = Note{Data: kv.Value, Revision: kv.ModRevision}
	}
	return out, nil
}

// Put writes a note that is as it was at a revision; 0: that is not there.
func (n *Notes) Put(ctx context.Context, name string, data []byte, revision int64) error {
	key := n.prefix + name
	answer, err := n.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(data))).Commit()
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	if !answer.Succeeded {
		return ErrChanged
	}
	return nil
}

// Delete removes a note.
func (n *Notes) Delete(ctx context.Context, name string) error {
	if _, err := n.client.Delete(ctx, n.prefix+name); err != nil {
		return fmt.Errorf("remove %s: %w", n.prefix+name, err)
	}
	return nil
}

// Follow calls changed as Leased.Follow does.
func (n *Notes) Follow(ctx context.Context, changed func()) error {
	return follow(ctx, n.client, n.prefix, changed)
}
