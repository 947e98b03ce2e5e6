package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const awayKMS = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - kms: {apiVersion: v2, name: away, timeout: 1s, endpoint: "unix://%s"}
  - identity: {}
`

// A KMS plugin that does not answer keeps only what it encrypted from being served.
func TestWaitCachesWithoutKMS(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, awayKMS, filepath.Join(dir, "kms.sock")), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := func() error { return errors.New("not filled") }
	for _, c := range []struct {
		resource schema.GroupResource
		want     error
	}{
		{secrets, nil},
		{schema.GroupResource{Resource: "pods"}, context.DeadlineExceeded},
	} {
		s := &Store{}
		if err := s.Encrypt(file, "test", slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		s.fills(schema.GroupResource{Resource: "nodes"}, func() error { return nil })
		s.fills(c.resource, empty)
		wait := time.Minute
		if c.want != nil {
			wait = kmsPatience + time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if err := s.WaitCaches(ctx); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.resource, err, c.want)
		}
		cancel()
		s.encryption.stop()
	}
}
