package connect_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientportforward "k8s.io/client-go/tools/portforward"
	client "k8s.io/client-go/tools/remotecommand"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// echo is a container that tells what it was asked, then repeats its input.
type echo struct{}

func (echo) ExecInContainer(_ context.Context, name, _, container string, cmd []string, in io.Reader,
	out, errs io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if cmd[0] == "lost" {
		fmt.Fprint(out, "some output")
		agentGone <- struct{}{}
		_, err := io.Copy(io.Discard, in) // until the connection is gone
		return err
	}
	fmt.Fprintf(out, "%s/%s %s: ", name, container, strings.Join(cmd, " "))
	fmt.Fprint(errs, "to stderr")
	_, err := io.Copy(out, in)
	return err
}

func (echo) PortForward(_ context.Context, name, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	_, err := fmt.Fprintf(stream, "%s:%d", name, port)
	return err
}

// agentGone gets one when an agent's connections are to break in the middle of a command.
var agentGone = make(chan struct{}, 1)

// serveStreams answers exec and portForward as an agent does; false: the
// request is for something else.
func serveStreams(w http.ResponseWriter, r *http.Request) bool {
	path := strings.Split(r.URL.Path, "/")
	switch path[1] {
	case "exec":
		o, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return true
		}
		remotecommand.ServeExec(&breakable{w}, r, echo{}, path[3], "", path[4], r.URL.Query()["command"], o,
			time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	case "portForward":
		o, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return true
		}
		portforward.ServePortForward(w, r, echo{}, path[3], "", o, time.Minute, time.Minute,
			portforward.SupportedProtocols)
	default:
		return false
	}
	return true
}

// breakable keeps the connection that is taken over, which breaks as agentGone tells.
type breakable struct{ http.ResponseWriter }

func (b *breakable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := b.ResponseWriter.(http.Hijacker).Hijack()
	if err != nil {
		return nil, nil, err
	}
	ended := &endingConn{Conn: conn, ended: make(chan struct{})}
	go func() {
		select {
		case <-agentGone:
			conn.Close()
		case <-ended.ended:
		}
	}()
	return ended, rw, nil
}

func (b *breakable) Flush() { b.ResponseWriter.(http.Flusher).Flush() }

type endingConn struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

func (c *endingConn) Close() error {
	c.once.Do(func() { close(c.ended) })
	return c.Conn.Close()
}

// execLost runs a command whose agent goes away: nobody may think that it succeeded.
func execLost(t *testing.T, c kubernetes.Interface, config *rest.Config) {
	url := c.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("logged").
		SubResource("exec").VersionedParams(
		&corev1.PodExecOptions{Container: "d", Command: []string{"lost"}, Stdin: true, Stdout: true},
		scheme.ParameterCodec).URL()
	executor := must[client.Executor](t)(client.NewWebSocketExecutor(config, "GET", url.String()))
	in, input := io.Pipe()
	defer input.Close()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := executor.StreamWithContext(ctx, client.StreamOptions{Stdin: in, Stdout: &out})
	if err == nil || !strings.Contains(err.Error(), "lost") || out.String() != "some output" {
		t.Errorf("an exec whose agent went away: %v, %q", err, out.String())
	}
}

// execStreams runs a command as kubectl does, by WebSocket and by SPDY.
func execStreams(t *testing.T, c kubernetes.Interface, config *rest.Config) {
	url := c.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("logged").
		SubResource("exec").VersionedParams(
		&corev1.PodExecOptions{Container: "d", Command: []string{"cat", "-"}, Stdin: true, Stdout: true, Stderr: true},
		scheme.ParameterCodec).URL()
	for name, connect := range map[string]func() (client.Executor, error){
		"WebSocket": func() (client.Executor, error) { return client.NewWebSocketExecutor(config, "GET", url.String()) },
		"SPDY":      func() (client.Executor, error) { return client.NewSPDYExecutor(config, "POST", url) },
	} {
		executor := must[client.Executor](t)(connect())
		var out, errs bytes.Buffer
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		err := executor.StreamWithContext(ctx,
			client.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errs})
		cancel()
		if err != nil || out.String() != "logged/d cat -: hello" || errs.String() != "to stderr" {
			t.Errorf("%s: %v, %q, %q", name, err, out.String(), errs.String())
		}
	}
}

// forwardPorts tunnels SPDY through a WebSocket, as kubectl port-forward does.
func forwardPorts(t *testing.T, c kubernetes.Interface, config *rest.Config) {
	url := c.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("logged").
		SubResource("portforward").URL()
	dialer, err := clientportforward.NewSPDYOverWebsocketDialer(url, config)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := clientportforward.New(dialer, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("not ready")
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn := must[net.Conn](t)(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local)))
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := must[[]byte](t)(io.ReadAll(conn)); string(got) != "logged:8080" {
		t.Errorf("through the tunnel: %q", got)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
