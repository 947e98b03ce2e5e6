package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shoal-project/shoal/agent/process"
)

// What a client may take before it is known who it is. The library's server has
// the same but for two: its headers may have 1 MiB, which each of some thousand
// connections of one stranger could hold, and its HTTP/2 connections buffer
// 25 MiB of what they upload. The longest token that is looked at has 64 KiB.
const (
	maxHeader     = 256 << 10
	maxStreams    = 100
	maxUpload     = 256 << 10 // of a stream; 99 % of objects are smaller
	maxUploads    = 4<<20 - 1 // of a connection
	headerTimeout = 32 * time.Second
	keepAlive     = 90 * time.Second
)

// front serves the API in place of the library's server, whose limits are fixed.
// It begins and ends when that would, which listens where nobody comes.
type front struct {
	listener net.Listener
	monitors []net.Listener
	cert     *dynamiccertificates.DynamicCertKeyPairContent
	ca       dynamiccertificates.CAContentProvider
	log      *slog.Logger
	stage    stage
}

func newFront(cfg Config) (*front, error) {
	f := &front{listener: cfg.Listener, monitors: cfg.Monitors, log: cfg.Log,
		stage: stage{addr: cfg.Listener.Addr(), begun: make(chan struct{}), ended: make(chan struct{})}}
	var err error
	if f.cert, err = dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", cfg.CertFile,
		cfg.KeyFile); err != nil {
		return nil, fmt.Errorf("load serving certificate: %w", err)
	}
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", cfg.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("load client CA: %w", err)
	}
	f.ca = ca
	if cfg.FrontProxyCAFile != "" {
		front, err := dynamiccertificates.NewDynamicCAContentFromFile("front-proxy-ca", cfg.FrontProxyCAFile)
		if err != nil {
			return nil, fmt.Errorf("load front proxy CA: %w", err)
		}
		f.ca = dynamiccertificates.NewUnionCAContentProvider(ca, front)
	}
	return f, nil
}

// tls shows the certificate that the files hold at the moment. Callers may show
// one of theirs, which the authenticators verify.
func (f *front) tls(ctx context.Context) (*tls.Config, error) {
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequestClientCert}
	follow := dynamiccertificates.NewDynamicServingCertificateController(base, f.ca, f.cert, nil, nil)
	f.ca.AddListener(follow)
	f.cert.AddListener(follow)
	if err := follow.RunOnce(); err != nil {
		return nil, fmt.Errorf("load serving certificate: %w", err)
	}
	go f.cert.Run(ctx, 1)
	if ca, ok := f.ca.(dynamiccertificates.ControllerRunner); ok {
		go ca.Run(ctx, 1)
	}
	c := base.Clone() // base is read whenever the files change
	c.GetConfigForClient = follow.GetConfigForClient
	go follow.Run(1, ctx.Done())
	return c, nil
}

// run serves from when the library's server begins until close.
func (f *front) run(ctx context.Context, handler http.Handler) error {
	config, err := f.tls(ctx)
	if err != nil {
		return err
	}
	select {
	case <-f.stage.begun:
	case <-f.stage.ended:
		return nil
	}
	ended := make(chan error, 1+len(f.monitors))
	var servers []*http.Server
	serve := func(l net.Listener, what string, h http.Handler) {
		config := config.Clone() // to which a server adds what it speaks
		server := f.server(config, h)
		servers = append(servers, server)
		go func() {
			err := server.Serve(tls.NewListener(l, config))
			ended <- fmt.Errorf("serve %s on %s: %w", what, l.Addr(), err)
		}()
	}
	serve(f.listener, "the API", handler)
	for _, l := range f.monitors {
		serve(l, "metrics", monitored(handler))
	}
	defer func() {
		for _, server := range servers {
			server.Close()
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-f.stage.ended:
	}
	// No new connections; requests in flight are answered until ctx ends, and
	// watches are cut then: clients resume them.
	for _, server := range servers {
		if err := server.Shutdown(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("stop to serve the API: %w", err)
		}
	}
	return nil
}

// server is one with the limits of above.
func (f *front) server(config *tls.Config, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       keepAlive,
		ErrorLog:          process.Complaints(f.log),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              maxUpload,
			MaxReceiveBufferPerStream:     maxUpload,
			MaxReceiveBufferPerConnection: maxUploads,
		},
	}
}

// monitoring are the paths that are served on ports of their own.
var monitoring = []string{"/metrics", "/metrics/slis", "/metrics/resources", "/healthz", "/livez", "/readyz", "/version"}

// monitored lets requests to these paths through to the API, which asks who sends
// them and whether they may.
func monitored(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read := r.Method == http.MethodGet || r.Method == http.MethodHead
		if !read || !slices.Contains(monitoring, r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// stage is the listener of the library's server: it tells when that begins and
// ends.
type stage struct {
	addr         net.Addr
	begun, ended chan struct{}
	begin, end   sync.Once
}

// Accept implements net.Listener, as do the following.
func (s *stage) Accept() (net.Conn, error) {
	s.begin.Do(func() { close(s.begun) })
	<-s.ended
	return nil, net.ErrClosed
}

// Close lets the server go.
func (s *stage) Close() error {
	s.end.Do(func() { close(s.ended) })
	return nil
}

// Addr is where the API is served.
func (s *stage) Addr() net.Addr { return s.addr }

// serveUntil runs the library's server and the front beside it; the end of one is
// the end of the other.
func (f *front) serveUntil(ctx context.Context, handler http.Handler, library func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Connections outlive ctx: the library waits for requests in flight.
	drained, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- f.run(drained, handler)
	}()
	err := library(ctx)
	_ = f.stage.Close() // it returns nil
	cut()
	return errors.Join(err, <-ended)
}
