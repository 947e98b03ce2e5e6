package csitest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Register has a driver that serves at a socket register with a node, by a socket
// in its directory plugins_registry, until gone is called or the test ends. told
// gets what the node answers: "" for registered.
func (d *Driver) Register(t *testing.T, dir, endpoint string) (told <-chan string, gone func()) {
	t.Helper()
	return Register(t, dir, &registrationv1.PluginInfo{Type: registrationv1.CSIPlugin, Name: d.Name, Endpoint: endpoint,
		SupportedVersions: []string{"1.0.0"}})
}

// Register is Driver.Register for a plugin of any type.
func Register(t *testing.T, dir string, info *registrationv1.PluginInfo) (told <-chan string, gone func()) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, info.Name+"-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan string, 16)
	s := grpc.NewServer()
	registrationv1.RegisterRegistrationServer(s, &registration{told: answers, info: info})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it returns when it is stopped
	gone = sync.OnceFunc(func() {
		s.Stop()
		serving.Wait()
	})
	t.Cleanup(gone)
	return answers, gone
}

type registration struct {
	registrationv1.UnimplementedRegistrationServer
	info *registrationv1.PluginInfo
	told chan<- string
}

// GetInfo implements the registration service.
func (r *registration) GetInfo(context.Context, *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus implements the registration service.
func (r *registration) NotifyRegistrationStatus(_ context.Context, s *registrationv1.RegistrationStatus) (
	*registrationv1.RegistrationStatusResponse, error) {
	answer := s.Error
	if !s.PluginRegistered && answer == "" {
		answer = fmt.Sprintf("%s is not registered", r.info.Name)
	}
	select {
	case r.told <- answer:
	default: // nobody reads so many
	}
	return &registrationv1.RegistrationStatusResponse{}, nil
}
