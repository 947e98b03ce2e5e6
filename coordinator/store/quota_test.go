package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkube "go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// said is a log that may be read while it is written.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *said) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.buf.String(), text)
}

func openSmall(t *testing.T) (*Store, *said) {
	log := &said{}
	s, err := Open(t.Context(), Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(log, nil)),
		quota: 64 << 20, roomEvery: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, log
}

func create(t *testing.T, s *Store, key string) error {
	_, err := s.client.OptimisticPut(t.Context(), key, bytes.Repeat([]byte{'v'}, 1<<20), 0, etcdkube.PutOptions{})
	return err
}

func takes(t *testing.T, s *Store, key string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = create(t, s, key); err == nil {
			return
		}
	}
	t.Errorf("writes are still refused: %v", err)
}

// TestFullDatabase: before the database has its largest size new objects are refused, then
// changes; what says that nodes live is written, and there is room soon after deletions.
func TestFullDatabase(t *testing.T) {
	s, log := openSmall(t)
	var refused error
	n := 0
	for ; refused == nil && n < 100; n++ {
		refused = create(t, s, fmt.Sprint("/registry/configmaps/a/", n))
		// What is in use is known when a batch is in the file.
		for deadline := time.Now().Add(10 * time.Second); refused == nil && s.etcd.inUse() < int64(n)<<20; {
			if time.Now().After(deadline) {
				t.Fatalf("%d MiB are in use after %d", s.etcd.inUse()>>20, n)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if apierrors.ReasonForError(refused) != "InsufficientStorage" || !strings.Contains(refused.Error(), "delete objects") {
		t.Fatalf("after %d: %v", n, refused)
	}
	if n < 15 || n > 40 {
		t.Errorf("refused after %d MiB of 64", n)
	}
	lease := "/registry/leases/kube-node-lease/a"
	if _, err := s.client.OptimisticPut(t.Context(), lease, []byte("v"), 0, etcdkube.PutOptions{}); err != nil {
		t.Errorf("a node's Lease: %v", err)
	}
	if _, err := s.etcd.current().client.Delete(t.Context(), "/registry/configmaps/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	takes(t, s, "/registry/configmaps/a/again")
	if log.count("database is full") != 1 || log.count("has room again") != 1 {
		t.Errorf("said: %s", log.buf.String())
	}
}

// TestAlarm: an etcd that has reached its quota takes writes again once there is room.
func TestAlarm(t *testing.T) {
	s, _ := openSmall(t)
	raw := s.etcd.current().client
	value := string(bytes.Repeat([]byte{'v'}, 1<<20))
	var err error
	// How large the database is, etcd knows when a batch is in the file.
	for i, deadline := 0, time.Now().Add(30*time.Second); err == nil && time.Now().Before(deadline); i++ {
		_, err = raw.Put(t.Context(), fmt.Sprint("/registry/configmaps/a/", i), value)
		time.Sleep(10 * time.Millisecond)
	}
	if !noRoom(err) {
		t.Fatalf("the quota: %v", err)
	}
	if err := create(t, s, "/registry/configmaps/a/more"); apierrors.ReasonForError(err) != "InsufficientStorage" {
		t.Errorf("a write meanwhile: %v", err)
	}
	if _, err := raw.Delete(t.Context(), "/registry/configmaps/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	takes(t, s, "/registry/configmaps/a/again")
	if s.alarmed() {
		t.Error("the alarm is not over")
	}
}
