package main

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/server"
)

// This file holds the thin adapters between packages that do not know each
// other.

// podsView is the pods as the server sees them.
type podsView struct{ m *pod.Manager }

func (v podsView) List() []*corev1.Pod { return v.m.Told() }

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
