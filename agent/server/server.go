package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/image/peer"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/stats"
	"github.com/shoal-project/shoal/agent/trust"
)

// Pod is a pod with what runs of it.
type Pod struct {
	Pod      *corev1.Pod
	Observed *record.Observed
}

// Pods finds the node's pods.
type Pods interface {
	List() []*corev1.Pod
	Find(namespace, name string) (Pod, bool)
}

// Stats measures the node and its pods.
type Stats interface {
	// Summary tells of CPU and memory alone if it is to be brief.
	Summary(ctx context.Context, brief bool) (*statsapi.Summary, error)
	Metrics(ctx context.Context, w io.Writer) error
	Resource(ctx context.Context, w io.Writer) error
	Containers(ctx context.Context, w io.Writer) error
	ProbeResults(ctx context.Context, w io.Writer) error
}

// GossipKeys are those that the gossip's members share.
type GossipKeys interface {
	// Prints tell the keys apart without telling them.
	Prints() []string
	// Replace uses the keys of another key file.
	Replace(file []byte) error
}

// Server is the API.
type Server struct {
	Addr string
	// Certificate is what the server shows, asked for with each connection.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Auth        *Auth
	Pods        Pods
	Sessions    Sessions
	Stats       Stats
	// Checkpoint writes a running container into an archive on the node and returns its
	// path; timeout is in seconds, 0 for the usual one.
	Checkpoint func(ctx context.Context, pod *corev1.Pod, c *record.Observation, timeout int64) (path string, err error)
	// LogsDir is the directory of all pods' logs.
	LogsDir string
	// PastLogs finds a log of a pod that is gone; nil: none are kept.
	PastLogs func(Past) (logs.File, bool)
	// NodeLogsDir is the directory of the node's own logs; empty: they are not shown.
	NodeLogsDir string
	// NodeLogQueries has the journal of systemd's units shown, too (KEP-2258), by the
	// program Journalctl, "" for that of the PATH.
	NodeLogQueries bool
	Journalctl     string
	About          About
	// Config is what /configz shows.
	Config any
	// GossipKeys is nil on a node without them.
	GossipKeys GossipKeys
	// Authorities is nil on a node whose CAs nobody rotates.
	Authorities Authorities
	// GossipView is how the node sees the members of the gossip; nil without one.
	GossipView func() []gossip.View
	// Layers gives layers of images to other nodes; nil: they get none.
	Layers http.Handler
	// Traced makes spans of requests whose callers are known; nil: nothing is traced.
	Traced func(http.Handler) http.Handler
	// Reverse has connections of coordinators that cannot dial the node; nil: they can.
	Reverse net.Listener
	// Healthy is nil while the node works.
	Healthy func() error
	Log     *slog.Logger
}

// What a caller may take before it is known who it is (docs/security.md).
const (
	maxConnections = 4096
	maxHeader      = 64 << 10
	maxPath        = 2 << 10
	// maxBody bounds the body of a request: parameters may be in one, all else is
	// streamed over the upgraded connection.
	maxBody = 64 << 10
	// headerTimeout is also that of the TLS handshake.
	headerTimeout = 10 * time.Second
	keepAlive     = 90 * time.Second
)

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w: is another kubelet running? (--port gives another)", s.Addr, err)
	}
	srv := s.http(ctx)
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if s.Reverse == nil {
		return serve(srv, l)
	}
	var g errgroup.Group
	for _, l := range []net.Listener{l, s.Reverse} {
		g.Go(func() error {
			defer srv.Close() // without one the agent starts anew
			return serve(srv, l)
		})
	}
	return g.Wait()
}

func serve(srv *http.Server, l net.Listener) error {
	l = process.LimitConnections(l, process.ConnectionsUpTo(maxConnections))
	if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// http is the server with its limits.
func (s *Server) http(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       keepAlive,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          process.Complaints(s.Log),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: s.Certificate,
			NextProtos:     []string{"http/1.1"},
			// The handshake tells callers which CAs' certificates they may show.
			GetConfigForClient: s.forCaller,
		},
	}
}

// forCaller is the configuration with the CAs of now.
func (s *Server) forCaller(*tls.ClientHelloInfo) (*tls.Config, error) {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.Certificate,
		ClientAuth:     tls.RequestClientCert,
		ClientCAs:      s.Auth.clientCAs.Load(),
		NextProtos:     []string{"http/1.1"},
	}, nil
}

// handler is the list of all there is. Each route says what its callers must be
// allowed to, so that no way to write a path gets past it.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	paths := map[string]bool{"/flagz": true, "/statusz": true}
	read := func(pattern string, f http.HandlerFunc, subresources ...string) {
		top, _, _ := strings.Cut(pattern[1:], "/")
		paths["/"+top] = true
		mux.Handle("GET "+pattern, s.Auth.allow(f, subresources...))
	}
	read("/healthz", s.health, "healthz", "proxy")
	read("/healthz/ping", s.health, "healthz", "proxy")
	read("/pods", s.pods, "pods", "proxy")
	read("/pods/", s.pods, "pods", "proxy")
	read("/runningpods/", s.running, "pods", "proxy")
	read("/configz", s.configz, "configz", "proxy")
	read(gossip.KeysPath, s.gossipKeys, "proxy")
	mux.Handle("PUT "+gossip.KeysPath, s.Auth.allow(s.setGossipKeys, "proxy"))
	mux.Handle("POST "+trust.Path, s.Auth.allow(s.authorities, "proxy"))
	read(gossip.MembersPath, s.gossipMembers, "proxy")
	read("/containerLogs/{namespace}/{pod}/{container}", s.containerLogs, "proxy")
	read("/logs/", s.nodeLogs, "log")
	read("/stats/summary", s.summary, "stats")
	read("/metrics", s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.Metrics(ctx, w) }), "metrics")
	read("/metrics/resource", s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.Resource(ctx, w) }),
		"metrics")
	read("/metrics/cadvisor",
		s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.Containers(ctx, w) }), "metrics")
	read("/metrics/probes",
		s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.ProbeResults(ctx, w) }), "metrics")
	read("/metrics/slis", s.text(func(_ context.Context, w io.Writer) error { return stats.Health(w, s.sick()) }),
		"metrics")
	read("/flagz", s.flagz, "configz", "proxy")
	read("/statusz", s.statusz(slices.Sorted(maps.Keys(paths))), "statusz", "proxy")
	for _, path := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		mux.Handle("/exec"+path, s.Auth.allowEntry(s.exec))
		mux.Handle("/attach"+path, s.Auth.allowEntry(s.attach))
		mux.Handle("POST /run"+path, s.Auth.allowEntry(s.run))
	}
	mux.Handle("POST /checkpoint/{namespace}/{pod}/{container}", s.Auth.allow(s.checkpoint, "checkpoint"))
	mux.Handle("/portForward/{namespace}/{pod}", s.Auth.allowEntry(s.portForward))
	mux.Handle("/portForward/{namespace}/{pod}/{uid}", s.Auth.allowEntry(s.portForward))
	if s.Layers != nil {
		mux.Handle("GET "+peer.Path, s.Auth.allowNodes(s.Layers))
	}
	mux.Handle("/", s.Auth.allow(http.NotFound, "proxy"))
	known := http.Handler(mux)
	if s.Traced != nil {
		known = s.Traced(mux)
	}
	// Without a limit a form of many megabytes would be kept in files of the node.
	return http.MaxBytesHandler(shortPaths(s.Auth.identify(known)), maxBody)
}

// shortPaths refuses what cannot be a path of this API: namespace, pod, UID and
// container together take less.
func shortPaths(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.URL.Path) > maxPath || len(r.URL.RawPath) > maxPath {
			refuse(w, r, "path too long", http.StatusRequestURITooLong)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.sick(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	io.WriteString(w, "ok")
}

func (s *Server) sick() error {
	if s.Healthy == nil {
		return nil
	}
	return s.Healthy()
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.Pods.List() {
		list.Items = append(list.Items, *p)
	}
	reply(w, list)
}

func (s *Server) running(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.Pods.List() {
		found, ok := s.Pods.Find(p.Namespace, p.Name)
		if !ok || !found.Observed.Running() {
			continue
		}
		out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
		for _, c := range found.Observed.Containers {
			if c.State == record.Running {
				out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c.Name, Image: c.ImageRef})
			}
		}
		list.Items = append(list.Items, out)
	}
	reply(w, list)
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	reply(w, map[string]any{"kubeletconfig": s.Config})
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	only, err := strconv.ParseBool(r.URL.Query().Get("only_cpu_and_memory"))
	sum, err := s.Stats.Summary(r.Context(), err == nil && only)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	reply(w, sum)
}

func (s *Server) text(f func(context.Context, io.Writer) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		if err := f(r.Context(), w); err != nil {
			s.Log.Debug("metrics are not complete", "err", err)
		}
	}
}

func reply(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(data)
}

// errNoPod is told, as other errors of sessions, in the kubelet's words: clients look for them.
const errNoPod = "pod does not exist"

// pod finds a pod by the request's path; it answers itself when there is none.
func (s *Server) pod(w http.ResponseWriter, r *http.Request) (Pod, bool) {
	p, ok := s.Pods.Find(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok || r.PathValue("uid") != "" && string(p.Pod.UID) != r.PathValue("uid") {
		http.Error(w, errNoPod, http.StatusNotFound)
		return Pod{}, false
	}
	return p, true
}
