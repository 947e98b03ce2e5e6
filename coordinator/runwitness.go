package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/store"
)

// runWitness holds a copy of the store and votes, so that two coordinators can lose one
// of them. It serves nobody but them, and has none of the cluster's keys.
func runWitness(
	ctx context.Context, cfg config.Config, m *member, manager process.ServiceManager, log *slog.Logger,
) error {
	if m == nil {
		return nil // its file could not be read
	}
	begin := time.Now()
	advertise, err := advertiseAddress(cfg)
	if err != nil {
		return err
	}
	if err := joinAgain(ctx, cfg, m, advertise, manager, log); err != nil {
		return unlessStopped(ctx, err)
	}
	peers, err := peersOf(cfg, *m, advertise)
	if err != nil {
		return err
	}
	others := newAgain(cfg, true, advertise, log)
	peers.Also = others
	st, err := store.Open(ctx, store.Config{Dir: filepath.Join(cfg.StateDir(), "etcd"), Peers: &peers, Log: log})
	if err != nil {
		return unlessStopped(ctx, err)
	}
	others.open.Store(st)
	return whileStored(ctx, st, func(ctx context.Context) error {
		defer func() { _ = st.Close() }()
		return whileNotRestored(ctx, cfg, st, peers, log, func(ctx context.Context) error {
			return serveWitness(ctx, cfg, m, st, begin, manager, log)
		})
	})
}

func serveWitness(
	ctx context.Context, cfg config.Config, m *member, st *store.Store, begin time.Time,
	manager process.ServiceManager, log *slog.Logger,
) error {
	err := st.Vote(ctx, patient(manager, log))
	if err == nil {
		err = joinedAgain(cfg, m)
	}
	if err != nil {
		return unlessStopped(ctx, err)
	}
	log.Info("witness votes", "name", m.Name, "after", time.Since(begin).Round(time.Millisecond))
	manager.Ready()
	watched, stop := context.WithCancel(ctx)
	defer stop()
	go manager.KeepAlive(watched, func(context.Context) bool { return true })
	go process.Trim(watched)
	<-ctx.Done()
	manager.Stopping()
	return nil
}
