package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/record"
)

// Pod is a pod with what runs of it.
type Pod struct {
	Pod      *v1.Pod
	Observed *record.Observed
}

// Pods finds the node's pods.
type Pods interface {
	List() []*v1.Pod
	Find(namespace, name string) (Pod, bool)
}

// Stats measures the node and its pods.
type Stats interface {
	Summary(ctx context.Context) (*statsapi.Summary, error)
	Metrics(ctx context.Context, w io.Writer) error
	Resource(ctx context.Context, w io.Writer) error
	Containers(ctx context.Context, w io.Writer) error
}

// Server is the API.
type Server struct {
	Addr string
	// Certificate is what the server shows; ClientCAs who may show one to it.
	Certificate tls.Certificate
	ClientCAs   *x509.CertPool
	Auth        *Auth
	Pods        Pods
	Sessions    Sessions
	Stats       Stats
	// LogsDir is the directory of all pods' logs.
	LogsDir string
	// Config is what /configz shows.
	Config any
	// Healthy is nil while the node works.
	Healthy func() error
	Log     *slog.Logger
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w: is another kubelet running? (--port gives another)", s.Addr, err)
	}
	srv := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(complaints{s.Log}, "", 0),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.Certificate},
			ClientAuth: tls.RequestClientCert, ClientCAs: s.ClientCAs, NextProtos: []string{"http/1.1"}},
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// complaints passes what net/http logs, but not the failures of strangers.
type complaints struct{ log *slog.Logger }

func (c complaints) Write(b []byte) (int, error) {
	text := strings.TrimSpace(string(b))
	if strings.Contains(text, "TLS handshake error") {
		c.log.Debug(text)
	} else {
		c.log.Warn(text)
	}
	return len(b), nil
}

// handler is the list of all there is.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /healthz/ping", s.health)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /pods/", s.pods)
	mux.HandleFunc("GET /runningpods/", s.running)
	mux.HandleFunc("GET /configz", s.configz)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.HandleFunc("GET /metrics", s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.Metrics(ctx, w) }))
	mux.HandleFunc("GET /metrics/resource", s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.Resource(ctx, w) }))
	mux.HandleFunc("GET /metrics/cadvisor", s.text(func(ctx context.Context, w io.Writer) error { return s.Stats.Containers(ctx, w) }))
	for _, path := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc("/exec"+path, s.exec)
		mux.HandleFunc("/attach"+path, s.attach)
		mux.HandleFunc("POST /run"+path, s.run)
	}
	mux.HandleFunc("/portForward/{namespace}/{pod}", s.portForward)
	mux.HandleFunc("/portForward/{namespace}/{pod}/{uid}", s.portForward)
	return s.Auth.wrap(mux)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if s.Healthy != nil {
		if err := s.Healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	io.WriteString(w, "ok")
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{}}
	for _, p := range s.Pods.List() {
		list.Items = append(list.Items, *p)
	}
	reply(w, list)
}

func (s *Server) running(w http.ResponseWriter, _ *http.Request) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{}}
	for _, p := range s.Pods.List() {
		found, ok := s.Pods.Find(p.Namespace, p.Name)
		if !ok || !found.Observed.Running() {
			continue
		}
		out := v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
		for _, c := range found.Observed.Containers {
			if c.State == record.Running {
				out.Spec.Containers = append(out.Spec.Containers, v1.Container{Name: c.Name, Image: c.ImageRef})
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
	sum, err := s.Stats.Summary(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if only, err := strconv.ParseBool(r.URL.Query().Get("only_cpu_and_memory")); err == nil && only {
		for i := range sum.Pods {
			sum.Pods[i].Network, sum.Pods[i].EphemeralStorage, sum.Pods[i].VolumeStats = nil, nil, nil
		}
	}
	reply(w, sum)
}

func (s *Server) text(f func(context.Context, io.Writer) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		if err := f(r.Context(), w); err != nil {
			s.Log.Debug("metrics are not complete", "error", err)
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

// container finds a container by the request's path; it answers itself when
// there is none.
func (s *Server) container(w http.ResponseWriter, r *http.Request) (Pod, *record.Observation) {
	ns, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	p, ok := s.Pods.Find(ns, name)
	if !ok || r.PathValue("uid") != "" && string(p.Pod.UID) != r.PathValue("uid") {
		http.Error(w, fmt.Sprintf("pod %q does not exist", ns+"/"+name), http.StatusNotFound)
		return Pod{}, nil
	}
	o := p.Observed.Latest(container)
	if o == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, name+"_"+ns), http.StatusNotFound)
		return Pod{}, nil
	}
	return p, o
}
