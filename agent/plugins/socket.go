package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// maxAnswer bounds what a plugin says of itself.
const maxAnswer = 64 << 10

// socket is one of the directory, until it is gone.
type socket struct {
	*Watcher
	path string
	identity
	end   context.CancelCauseFunc
	ended chan struct{}
}

// run registers the plugin of the socket, and takes that back when it is gone.
func (s *socket) run(ctx context.Context) {
	var told string
	for pause := s.pace.first; ; pause = min(2*pause, s.pace.last) {
		gone := s.change()
		p, h, err := s.register(ctx)
		if err == nil {
			s.Log.Info("plugin is registered", "type", p.Type, "plugin", p.Name, "endpoint", p.Endpoint)
			<-ctx.Done()
			s.deregister(ctx, p, h)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if err.Error() != told {
			told = err.Error()
			s.Log.Warn("plugin is not registered; it is tried again", "socket", s.path, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-gone:
			pause = s.pace.first
		case <-time.After(pause):
		}
	}
}

// deregister takes back what register did, unless it is the agent that ends.
func (s *socket) deregister(ctx context.Context, p Plugin, h Handler) {
	if !errors.Is(context.Cause(ctx), errGone) {
		return
	}
	done := s.take(context.WithoutCancel(ctx), p.Type+"/"+p.Name)
	defer done()
	h.Deregister(p)
	s.Log.Info("plugin is gone", "type", p.Type, "plugin", p.Name, "endpoint", p.Endpoint)
	s.went()
}

// register asks the plugin what it is, has it taken, and tells it so.
func (s *socket) register(ctx context.Context) (Plugin, Handler, error) {
	conn, err := dial(s.path)
	if err != nil {
		return Plugin{}, nil, err
	}
	defer conn.Close()
	client := registrationv1.NewRegistrationClient(conn)
	p, err := s.ask(ctx, client)
	if err != nil {
		return p, nil, fmt.Errorf("failed to get plugin info using RPC GetInfo at socket %s, err: %w", s.path, err)
	}
	h := s.Handlers[p.Type]
	if h == nil {
		err := fmt.Errorf("no handler registered for plugin type: %s at socket %s", p.Type, s.path)
		return p, nil, s.refuse(ctx, client, err)
	}
	done := s.take(ctx, p.Type+"/"+p.Name)
	if done == nil {
		return p, nil, ctx.Err()
	}
	defer done()
	if err := h.Register(ctx, p); err != nil {
		return p, nil, s.refuse(ctx, client, err)
	}
	if err := s.notify(ctx, client, &registrationv1.RegistrationStatus{PluginRegistered: true}); err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), errGone) {
			h.Deregister(p)
		}
		return p, nil, fmt.Errorf("failed to send registration status at socket %s, err: %w", s.path, err)
	}
	return p, h, nil
}

func (s *socket) ask(ctx context.Context, client registrationv1.RegistrationClient) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, s.pace.call)
	defer cancel()
	info, err := client.GetInfo(ctx, &registrationv1.InfoRequest{})
	if err != nil {
		return Plugin{}, err
	}
	p := Plugin{Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions}
	if p.Endpoint == "" {
		p.Endpoint = s.path
	}
	return p, nil
}

// refuse tells the plugin why it is not taken, and returns that.
func (s *socket) refuse(ctx context.Context, client registrationv1.RegistrationClient, why error) error {
	why = fmt.Errorf("RegisterPlugin error -- %w", why)
	if err := s.notify(ctx, client, &registrationv1.RegistrationStatus{Error: why.Error()}); err != nil {
		return fmt.Errorf("%w (and the plugin could not be told: %w)", why, err)
	}
	return why
}

func (s *socket) notify(ctx context.Context, client registrationv1.RegistrationClient,
	status *registrationv1.RegistrationStatus) error {
	ctx, cancel := context.WithTimeout(ctx, s.pace.call/2)
	defer cancel()
	_, err := client.NotifyRegistrationStatus(ctx, status)
	return err
}

// dial prepares a connection; it is made with the first request, which may wait
// until the plugin listens.
func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}),
	)
}
