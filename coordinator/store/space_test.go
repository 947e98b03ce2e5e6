package store

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	etcdkube "go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestFullDisk: new objects are refused first, then changes; deletions, reads
// and the small vital writes go on, and all is told once.
func TestFullDisk(t *testing.T) {
	var said bytes.Buffer
	s, err := Open(t.Context(), Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	disk := s.client.KV.(*gate).space
	free := int64(0)
	disk.free = func(string) (int64, error) { return free, nil }
	revisions := map[string]int64{}
	put := func(key string, value []byte) error {
		r, err := s.client.OptimisticPut(context.Background(), key, value, revisions[key], etcdkube.PutOptions{})
		if err == nil {
			revisions[key] = r.Revision
		}
		return err
	}
	const mib = 1 << 20
	for _, c := range []struct {
		free    int64
		key     string
		value   int
		refused bool
	}{
		{100 * mib, "/registry/configmaps/a/a", 1, false},
		{30 * mib, "/registry/configmaps/a/b", 1, true},
		{30 * mib, "/registry/configmaps/a/a", 1, false},
		{5 * mib, "/registry/configmaps/a/a", 1, true},
		{0, "/registry/leases/kube-node-lease/a", 1, false},
		{0, "/registry/leases/kube-node-lease/a", vitalBytes + 1, true},
		{0, "/registry/leases/kube-system/shoal-coordinator", 1, false},
		{0, "/registry/leases/kube-system/shoal-coordinator-2", 1, true},
		{0, "/registry/leases/kube-system/other", 1, true},
		{0, "/registry/leases/a/a", 1, true},
		{0, "/registry/minions/a", vitalBytes, false},
		{100 * mib, "/registry/configmaps/a/b", 1, false},
	} {
		free = c.free
		err := put(c.key, bytes.Repeat([]byte{'v'}, c.value))
		if (err != nil) != c.refused {
			t.Errorf("%d MiB free, put %s: %v", c.free/mib, c.key, err)
		}
		if c.refused && (apierrors.ReasonForError(err) != "InsufficientStorage" || !strings.Contains(err.Error(), "free some space")) {
			t.Errorf("the refusal says: %v", err)
		}
	}
	free = 0
	key := "/registry/configmaps/a/a"
	if _, err := s.client.OptimisticDelete(t.Context(), key, revisions[key], etcdkube.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if r, err := s.client.Kubernetes.Get(t.Context(), key, etcdkube.GetOptions{}); err != nil || r.KV != nil {
		t.Errorf("get: %v %v", r, err)
	}
	if n := strings.Count(said.String(), "the disk is full"); n != 1 {
		t.Errorf("told %d times:\n%s", n, said.String())
	}
	if !strings.Contains(said.String(), "space on the disk again") {
		t.Errorf("the end is not told:\n%s", said.String())
	}
}
