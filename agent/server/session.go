package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/shoal-project/shoal/agent/record"
)

// Streams is a runtime in process that joins streams itself.
type Streams interface {
	Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool,
		resize <-chan remotecommand.TerminalSize) error
	Attach(ctx context.Context, id string, in io.Reader, out, err io.WriteCloser, tty bool,
		resize <-chan remotecommand.TerminalSize) error
	PortForward(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error
}

// URLs is a runtime elsewhere that tells where it serves a session.
type URLs interface {
	Exec(ctx context.Context, r *criv1.ExecRequest) (*criv1.ExecResponse, error)
	Attach(ctx context.Context, r *criv1.AttachRequest) (*criv1.AttachResponse, error)
	PortForward(ctx context.Context, r *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error)
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

// Sessions is how containers are entered: Streams when the runtime is in
// process, or else URLs.
type Sessions struct {
	Streams Streams
	URLs    URLs
}

// As the kubelet's: a session with no traffic ends after four hours.
const (
	idleTimeout   = 4 * time.Hour
	createTimeout = 30 * time.Second
)

// execProtocols are those over SPDY; v5 exists over WebSockets alone.
var execProtocols = []string{remotecommand.StreamProtocolV4Name, remotecommand.StreamProtocolV3Name,
	remotecommand.StreamProtocolV2Name, remotecommand.StreamProtocolV1Name}

// target enters one container, whatever name the request gave.
type target struct {
	streams Streams
	id      string
}

// ExecInContainer implements remotecommand.Executor.
func (t target) ExecInContainer(ctx context.Context, _, _, _ string, cmd []string, in io.Reader,
	out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return t.streams.Exec(ctx, t.id, cmd, in, out, err, tty, resize)
}

// AttachContainer implements remotecommand.Attacher.
func (t target) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	return t.streams.Attach(ctx, t.id, in, out, err, tty, resize)
}

// PortForward implements portforward.PortForwarder.
func (t target) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	return t.streams.PortForward(ctx, t.id, port, stream)
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	p, o := s.live(w, r, notFound)
	if o == nil {
		return
	}
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	cmd := r.Form["command"]
	if s.Sessions.Streams == nil {
		got, err := s.Sessions.URLs.Exec(r.Context(), &criv1.ExecRequest{ContainerId: o.ID, Cmd: cmd,
			Tty: opts.TTY, Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr})
		forward(w, r, got.GetUrl(), err)
		return
	}
	remotecommand.ServeExec(w, r, target{s.Sessions.Streams, o.ID}, p.Pod.Name, string(p.Pod.UID), o.Name, cmd, opts,
		idleTimeout, createTimeout, execProtocols)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	p, o := s.live(w, r, notInPod)
	if o == nil {
		return
	}
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s.Sessions.Streams == nil {
		got, err := s.Sessions.URLs.Attach(r.Context(), &criv1.AttachRequest{ContainerId: o.ID,
			Tty: opts.TTY, Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr})
		forward(w, r, got.GetUrl(), err)
		return
	}
	remotecommand.ServeAttach(w, r, target{s.Sessions.Streams, o.ID}, p.Pod.Name, string(p.Pod.UID), o.Name, opts,
		idleTimeout, createTimeout, execProtocols)
}

// run answers with a command's output (POST /run, used by few).
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	_, o := s.live(w, r, notFound)
	if o == nil {
		return
	}
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	cmd := r.Form["cmd"]
	if len(cmd) == 1 { // all of it, as the kubelet takes it
		cmd = strings.Split(cmd[0], " ")
	}
	stdout, stderr, err := s.Sessions.URLs.ExecSync(r.Context(), o.ID, cmd, time.Minute)
	if err != nil {
		http.Error(w, fmt.Sprintf("%v\n%s", err, stderr), http.StatusInternalServerError)
		return
	}
	w.Write(append(stdout, stderr...))
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	ns, name := p.Pod.Namespace, p.Pod.Name
	sb := p.Observed.Sandbox()
	if sb == nil || !sb.Ready {
		http.Error(w, fmt.Sprintf("pod %q is not running", ns+"/"+name), http.StatusBadRequest)
		return
	}
	opts, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s.Sessions.Streams == nil {
		got, err := s.Sessions.URLs.PortForward(r.Context(),
			&criv1.PortForwardRequest{PodSandboxId: sb.ID, Port: ports(r)})
		forward(w, r, got.GetUrl(), err)
		return
	}
	portforward.ServePortForward(w, r, target{s.Sessions.Streams, sb.ID}, name, string(p.Pod.UID), opts, idleTimeout,
		createTimeout, []string{portforward.ProtocolV1Name})
}

func ports(r *http.Request) []int32 {
	var out []int32
	for _, v := range r.URL.Query()["port"] {
		if n, err := strconv.ParseInt(v, 10, 32); err == nil {
			out = append(out, int32(n))
		}
	}
	return out
}

// live finds a running container; it answers itself when there is none, as missing says.
func (s *Server) live(w http.ResponseWriter, r *http.Request, missing func(container string, p *corev1.Pod) string) (
	Pod, *record.Observation) {
	p, ok := s.pod(w, r)
	if !ok {
		return Pod{}, nil
	}
	container := r.PathValue("container")
	o := p.Observed.Latest(container)
	if o == nil || o.State != record.Running {
		http.Error(w, missing(container, p.Pod), http.StatusNotFound)
		return Pod{}, nil
	}
	return p, o
}

// notFound and notInPod are the kubelet's words for a container that does not run.
func notFound(container string, _ *corev1.Pod) string {
	return fmt.Sprintf("container not found (%q)", container)
}

func notInPod(container string, p *corev1.Pod) string {
	return fmt.Sprintf("container %s not found in pod %s_%s", container, p.Name, p.Namespace)
}

// forward hands a session to where the runtime serves it.
func forward(w http.ResponseWriter, r *http.Request, to string, err error) {
	var u *url.URL
	if err == nil {
		u, err = url.Parse(to)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) {
		pr.Out.URL, pr.Out.Host = u, u.Host
		pr.Out.Header.Del("Authorization") // the caller's token is for this server; the URL has its own
	}, FlushInterval: -1}
	proxy.ServeHTTP(w, r)
}
