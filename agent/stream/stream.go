package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"github.com/shoal-project/shoal/agent/process"
)

// maxSessions bounds the connections of local users, who all come from 127.0.0.1;
// a session needs the token in a URL, which holds once and for a minute.
const maxSessions = 1024

// Server gives out URLs for sessions and serves them.
type Server struct {
	runtime streaming.Runtime

	mu     sync.Mutex
	urls   streaming.Server
	http   *http.Server
	closed bool
}

// New makes a server that does not listen yet.
func New(runtime streaming.Runtime) *Server { return &Server{runtime: runtime} }

// start listens on a free port of the loopback interface, once.
func (s *Server) start() (streaming.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the stream server is closed")
	}
	if s.urls != nil {
		return s.urls, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve streams: %w", err)
	}
	config := streaming.DefaultConfig
	config.Addr = l.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr}
	if s.urls, err = streaming.NewServer(config, s.runtime); err != nil {
		l.Close()
		return nil, fmt.Errorf("serve streams: %w", err)
	}
	s.http = &http.Server{
		Handler:           s.urls,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	// All come from one source, which gets no more than half of the total.
	// ends with Close
	go s.http.Serve(process.LimitConnections(l, process.ConnectionLimits{Total: 2 * maxSessions, PerSource: maxSessions}))
	return s.urls, nil
}

// Exec answers the CRI request with a URL.
func (s *Server) Exec(_ context.Context, req *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	urls, err := s.start()
	if err != nil {
		return nil, err
	}
	return urls.GetExec(req)
}

// Attach answers the CRI request with a URL.
func (s *Server) Attach(_ context.Context, req *criv1.AttachRequest) (*criv1.AttachResponse, error) {
	urls, err := s.start()
	if err != nil {
		return nil, err
	}
	return urls.GetAttach(req)
}

// PortForward answers the CRI request with a URL.
func (s *Server) PortForward(_ context.Context, req *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error) {
	urls, err := s.start()
	if err != nil {
		return nil, err
	}
	return urls.GetPortForward(req)
}

// Close ends all sessions.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.http == nil {
		return nil
	}
	return s.http.Close()
}
