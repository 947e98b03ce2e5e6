package connect

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// streamMethods: SPDY clients POST, WebSocket clients GET.
var streamMethods = []string{"GET", "POST"}

// upgrading passes a connection that must be upgraded on to an agent.
func upgrading(location *url.URL, transport http.RoundTripper, responder rest.Responder) *proxy.UpgradeAwareHandler {
	return proxy.NewUpgradeAwareHandler(location, transport, false, true, proxy.NewErrorResponder(responder))
}

// streaming is upgrading for exec and attach; WebSockets of the v5 protocol are
// translated to SPDY, which every CRI streaming server speaks (KEP-4006).
func streaming(location *url.URL, transport http.RoundTripper, responder rest.Responder,
	o translator.Options) http.Handler {
	telling, tellingTransport := tellLost(location, transport)
	spdy := translator.NewStreamTranslatorHandler(telling, tellingTransport, 0, o)
	return translator.NewTranslatingHandler(upgrading(location, transport, responder), spdy,
		wsstream.IsWebSocketRequestWithStreamCloseProtocol)
}

func streamParams(o translator.Options) url.Values {
	v := url.Values{}
	for _, f := range []struct {
		name string
		set  bool
	}{{corev1.ExecStdinParam, o.Stdin}, {corev1.ExecStdoutParam, o.Stdout}, {corev1.ExecStderrParam, o.Stderr},
		{corev1.ExecTTYParam, o.Tty}} {
		if f.set {
			v.Set(f.name, "1")
		}
	}
	return v
}

type execREST struct{ kubelets }

var _ rest.Connecter = &execREST{}

func (r *execREST) New() runtime.Object      { return &corev1.PodExecOptions{} }
func (r *execREST) Destroy()                 {}
func (r *execREST) ConnectMethods() []string { return streamMethods }
func (r *execREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodExecOptions{}, false, ""
}

func (r *execREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	if err := r.mayCreate(ctx); err != nil {
		return nil, err
	}
	o, ok := options.(*corev1.PodExecOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	streams := translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	params := streamParams(streams)
	for _, word := range o.Command {
		params.Add("command", word)
	}
	return r.connect(ctx, name, target{"exec", o.Container, params, streams}, responder)
}

// target is what exec and attach ask of an agent.
type target struct {
	endpoint, container string
	params              url.Values
	streams             translator.Options
}

func (k *kubelets) connect(ctx context.Context, name string, t target, responder rest.Responder) (http.Handler, error) {
	p, err := k.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	container, err := chooseContainer(p, t.container)
	if err != nil {
		return nil, err
	}
	location, err := k.stream(ctx, p, t.endpoint, container, t.params)
	if err != nil {
		return nil, err
	}
	return streaming(location, k.transport(p.Spec.NodeName), responder, t.streams), nil
}

type attachREST struct{ kubelets }

var _ rest.Connecter = &attachREST{}

func (r *attachREST) New() runtime.Object      { return &corev1.PodAttachOptions{} }
func (r *attachREST) Destroy()                 {}
func (r *attachREST) ConnectMethods() []string { return streamMethods }
func (r *attachREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodAttachOptions{}, false, ""
}

func (r *attachREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	if err := r.mayCreate(ctx); err != nil {
		return nil, err
	}
	o, ok := options.(*corev1.PodAttachOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	streams := translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	return r.connect(ctx, name, target{"attach", o.Container, streamParams(streams), streams}, responder)
}

type portForwardREST struct{ kubelets }

var _ rest.Connecter = &portForwardREST{}

func (r *portForwardREST) New() runtime.Object      { return &corev1.PodPortForwardOptions{} }
func (r *portForwardREST) Destroy()                 {}
func (r *portForwardREST) ConnectMethods() []string { return streamMethods }
func (r *portForwardREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodPortForwardOptions{}, false, ""
}

func (r *portForwardREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	if err := r.mayCreate(ctx); err != nil {
		return nil, err
	}
	o, ok := options.(*corev1.PodPortForwardOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	p, err := r.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	params := url.Values{}
	if len(o.Ports) > 0 {
		ports := make([]string, len(o.Ports))
		for i, port := range o.Ports {
			ports[i] = strconv.Itoa(int(port))
		}
		params.Set(corev1.PortHeader, strings.Join(ports, ","))
	}
	location, err := r.stream(ctx, p, "portForward", "", params)
	if err != nil {
		return nil, err
	}
	handler := upgrading(location, r.transport(p.Spec.NodeName), responder)
	return translator.NewTranslatingHandler(handler, translator.NewTunnelingHandler(handler),
		wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
}
