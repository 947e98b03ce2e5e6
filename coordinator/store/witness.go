package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

// The witness is a value under the key that Secrets are written with. Each
// coordinator leaves it when it takes keys into use, and reads the one that is
// there before: two whose keys differ would write what the other cannot read,
// and no Secret may be there yet to tell.
const witnessKey, witnessText = "/shoal/encryption-witness", "shoal"

// seen is what became of the witness of one revision.
type seen struct {
	revision int64
	err      error
}

// readWitness returns the revision of the witness, 0 when there is none, and
// whether it is under the first key of a configuration.
func (s *Store) readWitness(ctx context.Context, with map[schema.GroupResource]value.Transformer) (at seen,
	current bool, err error) {
	page, err := s.client.KV.Get(ctx, witnessKey)
	if err != nil {
		return at, false, fmt.Errorf("read store: %w", err)
	}
	if len(page.Kvs) == 0 {
		return at, false, nil
	}
	kv := page.Kvs[0]
	at.revision = kv.ModRevision
	_, stale, err := encryptionconfig.StaticTransformers(with).TransformerForResource(secrets).TransformFromStorage(ctx,
		kv.Value, value.DefaultContext(witnessKey))
	switch {
	case err == nil:
	case ofKMS(kv.Value): // its plugin may start later
		return at, true, nil
	default:
		at.err = fmt.Errorf(
			"another coordinator of this store, or an earlier start, writes Secrets under %s, which it cannot read (%w): give all coordinators the same keys",
			keyOf(kv.Value), err)
	}
	return at, !stale, nil
}

// seesWitness fails when a configuration cannot read the witness.
func (s *Store) seesWitness(ctx context.Context, with map[schema.GroupResource]value.Transformer) error {
	at, _, err := s.readWitness(ctx, with)
	if err == nil {
		err = at.err
	}
	return err
}

// watchWitness tells when another coordinator took keys into use that this one
// does not have. The encryption's lock is held.
func (s *Store) watchWitness(ctx context.Context) error {
	e := s.encryption
	page, err := s.client.KV.Get(ctx, witnessKey, clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("read store: %w", err)
	}
	if len(page.Kvs) == 0 || page.Kvs[0].ModRevision == e.witness.revision {
		return e.witness.err
	}
	e.witness, _, err = s.readWitness(ctx, e.covered)
	if err == nil {
		err = e.witness.err
	}
	return err
}

// leaveWitness writes the witness with the keys in use. The encryption's lock is
// held. Without space, or without its KMS plugin, the store can write no Secret
// either: the one before stays.
func (s *Store) leaveWitness(ctx context.Context) error {
	e := s.encryption
	at, current, err := s.readWitness(ctx, e.covered)
	if err != nil {
		return err
	}
	if e.witness = at; at.err != nil || current {
		return at.err
	}
	data, err := e.dynamic.TransformerForResource(secrets).TransformToStorage(ctx, []byte(witnessText),
		value.DefaultContext(witnessKey))
	if err == nil {
		_, err = s.client.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(witnessKey), "=", at.revision)).
			Then(clientv3.OpPut(witnessKey, string(data))).Commit()
	}
	if err != nil {
		e.log.Warn("the key in use could not be noted in the store", "file", e.file, "err", err)
	}
	return nil
}
