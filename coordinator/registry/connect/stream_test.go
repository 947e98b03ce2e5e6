package connect_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
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
		remotecommand.ServeExec(w, r, echo{}, path[3], "", path[4], r.URL.Query()["command"], o, time.Minute,
			time.Minute, remotecommand.SupportedStreamingProtocols)
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
