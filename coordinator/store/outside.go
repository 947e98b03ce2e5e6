package store

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
)

// connect opens a connection to etcd servers elsewhere.
func connect(ctx context.Context, cfg Config) (*Store, error) {
	c := clientv3.Config{
		Endpoints: cfg.Servers, DialTimeout: 20 * time.Second,
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		Logger: zap.New(newLogCore(cfg.Log)),
	}
	if cfg.CAFile != "" || cfg.CertFile != "" {
		info := transport.TLSInfo{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, TrustedCAFile: cfg.CAFile}
		tlsConfig, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: %w", err)
		}
		c.TLS = tlsConfig
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	probe, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := client.Get(probe, "health"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("connect to etcd at %v: %w", cfg.Servers, err)
	}
	s := newStore(nil, client)
	feature.DefaultFeatureSupportChecker.CheckClient(ctx, client, storage.RequestWatchProgress)
	s.compact()
	return s, nil
}
