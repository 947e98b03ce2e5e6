package main

import (
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/server"
	"github.com/shoal-project/shoal/agent/serving"
	"github.com/shoal-project/shoal/agent/shutdown"
	"github.com/shoal-project/shoal/agent/stats"
)

// certificate is what the kubelet's API shows: the configured certificate, or one
// that the cluster signs and manager keeps, or else a self-signed one; none on a
// node that does not serve it.
type certificate struct {
	show    serving.Choice
	manager *serving.Manager // nil: the cluster does not sign it
}

func chooseCertificate(
	cfg *config.Config, facts host.Facts, server *api.Server, log *slog.Logger,
) (c certificate, err error) {
	if cfg.Port == 0 {
		return c, nil
	}
	if cfg.TLSCertFile != "" {
		c.show, err = serving.FromFiles(cfg.TLSCertFile, cfg.TLSPrivateKeyFile)
		return c, err
	}
	own, err := serving.SelfSigned(cfg.NodeName, facts.IPs)
	if err != nil {
		return c, err
	}
	if !server.Configured() || !cfg.BootstrapsTLS() {
		return certificate{show: serving.Always(own)}, nil
	}
	ca, err := server.CA()
	if err != nil {
		return c, err
	}
	m := &serving.Manager{
		Client:     server.Client,
		NodeName:   cfg.NodeName,
		File:       filepath.Join(cfg.DataDir, "kubelet-serving.pem"),
		Cluster:    ca,
		SelfSigned: own,
		Log:        log,
	}
	return certificate{show: m.Certificate, manager: m}, nil
}

// newServer makes the kubelet's API.
func newServer(b base, pods *pod.Manager, show serving.Choice) (*server.Server, error) {
	cluster, err := b.server.CA()
	if err != nil {
		return nil, err
	}
	cas, err := server.ClientCAs(b.cfg.ClientCAFile, cluster)
	if err != nil {
		return nil, err
	}
	return &server.Server{
		Addr:        net.JoinHostPort(b.cfg.Address, strconv.Itoa(b.cfg.Port)),
		Certificate: show,
		ClientCAs:   cas,
		Auth:        &server.Auth{Client: b.server.Client, ClientCAs: cas, NodeName: b.cfg.NodeName},
		Pods:        podsView{pods},
		Sessions:    b.runtime.sessions,
		Config:      kubeletConfig(b.cfg),
		LogsDir:     b.cfg.PodLogsDir,
		Stats: &stats.Provider{
			NodeName:    b.cfg.NodeName,
			Runtime:     b.runtime,
			NodeDir:     b.cfg.RootDir,
			ImageDir:    b.cfg.DataDir,
			MemoryBytes: b.facts.MemoryBytes,
			Available:   host.MemoryAvailable,
			Shutdown:    lastShutdown(b),
		},
		Log: b.log,
	}, nil
}

// lastShutdown are when the last shutdown began and ended, zero if never.
func lastShutdown(b base) func() (start, end time.Time) {
	return func() (start, end time.Time) {
		t, err := shutdown.Load(shutdownFile(b.cfg))
		if err != nil {
			b.log.Debug("metrics lack the shutdown", "err", err)
		}
		return t.Start, t.End
	}
}

// newRotator keeps container logs small.
func newRotator(b base, pods *pod.Manager) (*logs.Rotator, error) {
	size, err := resource.ParseQuantity(b.cfg.ContainerLogMaxSize)
	if err != nil {
		return nil, err
	}
	return &logs.Rotator{
		Logs:     pods.WrittenLogs,
		Dir:      b.cfg.PodLogsDir,
		Reopen:   b.runtime.ReopenContainerLog,
		MaxBytes: size.Value(),
		MaxFiles: b.cfg.ContainerLogMaxFiles,
		Log:      b.log,
	}, nil
}
