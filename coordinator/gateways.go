package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/gatewaystream"
)

// newGateways serves Gateways and Ingresses once a class asks for it.
func newGateways(api *apiserver.Server, log *slog.Logger) (*gatewaystream.Hub, error) {
	client, err := api.Gateways()
	if err != nil {
		return nil, fmt.Errorf("make client of the Gateway API: %w", err)
	}
	return gatewaystream.New(gatewaystream.Config{
		Client:      api.Client(),
		Gateways:    client,
		Informers:   api.Informers(),
		Definitions: api.Definitions,
		Log:         log,
	}), nil
}

// runGateways follows them; informers live as long as the API.
func (s parts) runGateways(apiCtx context.Context) func(context.Context) error {
	return func(ctx context.Context) error {
		return s.gateways.Run(ctx, func() { s.api.Informers().Start(apiCtx.Done()) })
	}
}
