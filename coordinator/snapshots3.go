package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/snapshots"
)

// bucket is where copies of snapshots go; nil: nowhere.
func bucket(cfg config.Config) *snapshots.Bucket {
	if cfg.SnapshotS3Endpoint == "" {
		return nil
	}
	return &snapshots.Bucket{
		Endpoint: cfg.SnapshotS3Endpoint, Name: cfg.SnapshotS3Bucket, Prefix: cfg.SnapshotS3Prefix,
		Region: cfg.SnapshotS3Region, CredentialsFile: cfg.SnapshotS3CredentialsFile, CAFile: cfg.SnapshotS3CAFile,
	}
}

// remote is a bucket as this cluster uses it: the names of its snapshots have the UID of
// kube-system, which a restored store has too.
type remote struct {
	snapshots.Bucket
	client kubernetes.Interface
	keep   int
}

func (s *parts) remote(b snapshots.Bucket) remote {
	return remote{Bucket: b, client: s.api.Client(), keep: s.cfg.SnapshotS3Keep}
}

func (r remote) cluster(ctx context.Context) (string, error) {
	ns, err := r.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find out which cluster this is: %w", err)
	}
	return string(ns.UID), nil
}

// List implements snapshots.Remote.
func (r remote) List(ctx context.Context) ([]snapshots.Copy, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return nil, err
	}
	return r.Bucket.List(ctx, cluster)
}

// Upload implements snapshots.Remote.
func (r remote) Upload(ctx context.Context, s snapshots.Snapshot) (string, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return "", err
	}
	return r.Bucket.Upload(ctx, cluster, s)
}

// Prune implements snapshots.Remote.
func (r remote) Prune(ctx context.Context, now time.Time) error {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return err
	}
	return r.Bucket.Prune(ctx, cluster, r.keep, now)
}
