package main

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/server"
)

// This file holds the thin adapters between packages that do not know each
// other.

// podNetwork is the network as the runtime calls it.
type podNetwork struct{ m *network.Manager }

func (n podNetwork) pod(p runtime.Pod) network.Pod {
	out := network.Pod{
		Namespace:   p.Namespace,
		Name:        p.Name,
		UID:         p.UID,
		ID:          p.ID,
		NetNS:       p.NetNSPath,
		Annotations: p.Annotations,
	}
	for _, m := range p.PortMappings {
		out.PortMappings = append(out.PortMappings, network.PortMapping{
			HostIP:        m.HostIp,
			HostPort:      uint16(m.HostPort),
			ContainerPort: uint16(m.ContainerPort),
			Protocol:      m.Protocol.String(),
		})
	}
	return out
}

func (n podNetwork) Setup(ctx context.Context, p runtime.Pod) (runtime.Result, error) {
	ips, err := n.m.Setup(ctx, n.pod(p))
	return runtime.Result{IPs: ips}, err
}

func (n podNetwork) Teardown(ctx context.Context, p runtime.Pod) error {
	return n.m.Teardown(ctx, n.pod(p))
}

func (n podNetwork) Status() error { return n.m.Status(context.Background()) }

// podsView is the pods as the server sees them.
type podsView struct{ m *pod.Manager }

func (v podsView) List() []*corev1.Pod { return v.m.Pods() }

func (v podsView) Find(namespace, name string) (server.Pod, bool) {
	f, ok := v.m.Find(namespace, name)
	return server.Pod{Pod: f.Pod, Observed: f.Observed}, ok
}

// streams enters containers of the runtime in process.
type streams struct{ r *runtime.Runtime }

type sizes = <-chan remotecommand.TerminalSize

func join(in io.Reader, out, errOut io.WriteCloser, tty bool, resize sizes) runtime.Streams {
	s := runtime.Streams{Stdin: in, TTY: tty, Resize: resize}
	if out != nil {
		s.Stdout = out
	}
	if errOut != nil {
		s.Stderr = errOut
	}
	return s
}

func (s streams) Exec(
	ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize sizes,
) error {
	return s.r.ExecIn(ctx, id, cmd, join(in, out, errOut, tty, resize))
}

func (s streams) Attach(
	ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize sizes,
) error {
	return s.r.AttachTo(ctx, id, join(in, out, errOut, tty, resize))
}

func (s streams) PortForward(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	return s.r.ForwardPort(ctx, sandbox, port, stream)
}
