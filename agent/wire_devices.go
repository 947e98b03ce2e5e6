package main

import (
	"context"
	"errors"
	"log/slog"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/plugins"
)

// newClaims has drivers prepare the devices of resource claims.
func newClaims(cfg *config.Config, server *api.Server, records dra.Records, boot string,
	log *slog.Logger) (*dra.Manager, error) {
	drivers := &dra.Drivers{Node: cfg.NodeName, Log: log}
	if server.Configured() {
		drivers.Client = server.Client
	}
	m := &dra.Manager{
		Drivers: drivers,
		Records: records,
		Claim: func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
			if !server.Configured() {
				return nil, errors.New("the node has no API server")
			}
			return server.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Boot: boot,
	}
	return m, m.Load()
}

// draPlugins has drivers of dynamic resources taken.
type draPlugins struct{ drivers *dra.Drivers }

// Register implements plugins.Handler.
func (p draPlugins) Register(_ context.Context, one plugins.Plugin) error {
	return p.drivers.Register(one.Name, one.Endpoint, one.Versions)
}

// Deregister implements plugins.Handler.
func (p draPlugins) Deregister(one plugins.Plugin) { p.drivers.Deregister(one.Name, one.Endpoint) }
