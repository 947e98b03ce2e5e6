package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/netns"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// What ExecSync keeps of each stream: as much as the CRI says that a runtime
// should, and what the callers in process make use of (the kubelet reads 10 KiB
// of a probe's output).
const (
	maxOutput = 16 << 20
	maxBrief  = 10 << 10
)

// Brief is the runtime for those who run commands in many containers at once
// and read the beginning of what they say: probes and hooks.
type Brief struct{ *Runtime }

// ExecSync is Runtime's, with less output.
func (b Brief) ExecSync(ctx context.Context, id string, cmd []string,
	timeout time.Duration) (stdout, stderr []byte, err error) {
	return b.execSync(ctx, id, cmd, timeout, maxBrief)
}

// ExecSync runs a command and returns its output. An exit code other than 0
// is a utilexec.CodeExitError, as k8s.io/cri-client has it.
func (r *Runtime) ExecSync(ctx context.Context, id string, cmd []string,
	timeout time.Duration) (stdout, stderr []byte, err error) {
	return r.execSync(ctx, id, cmd, timeout, maxOutput)
}

func (r *Runtime) execSync(ctx context.Context, id string, cmd []string, timeout time.Duration,
	keep int) (stdout, stderr []byte, err error) {
	stdout, stderr, code, err := r.containers.ExecSync(ctx, id, cmd, timeout, keep)
	if errors.Is(err, context.DeadlineExceeded) {
		return stdout, stderr, status.Errorf(codes.DeadlineExceeded,
			"failed to exec in container: timeout %v exceeded: %v", timeout, context.DeadlineExceeded)
	}
	if err != nil {
		return stdout, stderr, toStatus(err)
	}
	return stdout, stderr, exitError(cmd, code)
}

func exitError(cmd []string, code int) error {
	if code == 0 {
		return nil
	}
	return utilexec.CodeExitError{Err: fmt.Errorf("command '%s' exited with %d", joinWords(cmd), code), Code: code}
}

func joinWords(cmd []string) string {
	out := ""
	for i, w := range cmd {
		if i > 0 {
			out += " "
		}
		out += w
	}
	return out
}

// Exec, Attach and PortForward of the CRI answer with URLs on the loopback
// interface; ExecIn, AttachTo and ForwardPort are the same in process.

// Exec gives a URL for a command's streams.
func (r *Runtime) Exec(ctx context.Context, req *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	if err := r.mustRun(req.GetContainerId()); err != nil {
		return nil, err
	}
	return r.stream.Exec(ctx, req)
}

// Attach gives a URL for a container's streams.
func (r *Runtime) Attach(ctx context.Context, req *criv1.AttachRequest) (*criv1.AttachResponse, error) {
	if err := r.mustRun(req.GetContainerId()); err != nil {
		return nil, err
	}
	return r.stream.Attach(ctx, req)
}

// PortForward gives a URL for connections into a pod.
func (r *Runtime) PortForward(ctx context.Context, req *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error) {
	if _, err := r.sandboxes.Get(req.GetPodSandboxId()); err != nil {
		return nil, toStatus(err)
	}
	return r.stream.PortForward(ctx, req)
}

func (r *Runtime) mustRun(id string) error {
	c, err := r.containers.Get(id)
	if err != nil {
		return toStatus(err)
	}
	if c.State != container.Running {
		return status.Errorf(codes.FailedPrecondition, "container is in CONTAINER_%s state", c.State)
	}
	return nil
}

// Streams are the streams of a session in process; nil ones are not used.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	Resize         <-chan remotecommand.TerminalSize
}

// ExecIn runs a command with streams. An exit code other than 0 is a
// utilexec.CodeExitError.
func (r *Runtime) ExecIn(ctx context.Context, id string, cmd []string, s Streams) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	code, err := r.containers.Exec(ctx, id, cmd, s.io(ctx))
	if err != nil {
		return toStatus(err)
	}
	return exitError(cmd, code)
}

// AttachTo connects streams to a container's own.
func (r *Runtime) AttachTo(ctx context.Context, id string, s Streams) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return toStatus(r.containers.Attach(ctx, id, s.io(ctx)))
}

func (s Streams) io(ctx context.Context) container.IO {
	out := container.IO{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, TTY: s.TTY}
	if s.Resize == nil {
		return out
	}
	sizes := make(chan container.Size)
	go func() {
		defer close(sizes)
		for {
			select {
			case z, ok := <-s.Resize:
				if !ok {
					return
				}
				select {
				case sizes <- container.Size{Width: z.Width, Height: z.Height}:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	out.Resize = sizes
	return out
}

// ForwardPort copies between stream and a port on the pod's loopback.
func (r *Runtime) ForwardPort(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	s, err := r.sandboxes.Get(sandboxID)
	if err != nil {
		return toStatus(err)
	}
	if !s.Ready {
		return toStatus(fmt.Errorf("sandbox container %q is not running", s.ID))
	}
	conn, err := dial(s.NetNS(), port)
	if err != nil {
		return fmt.Errorf("failed to execute portforward in network namespace %q: %w", s.NetNS(), err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(conn, stream)
		_ = conn.CloseWrite()
	}()
	_, _ = io.Copy(stream, conn)
	stream.Close() // ends the other direction too
	<-sent
	return nil
}

// dial connects inside the namespace, by IPv4 or else IPv6.
func dial(ns string, port int32) (*net.TCPConn, error) {
	var conn net.Conn
	err := netns.Do(ns, func() (err error) {
		if conn, err = net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))); err == nil {
			return nil
		}
		six, err6 := net.Dial("tcp6", net.JoinHostPort("::1", strconv.Itoa(int(port))))
		if err6 != nil {
			return fmt.Errorf("failed to connect to localhost:%d inside namespace, IPv4: %w IPv6: %w", port, err, err6)
		}
		conn = six
		return nil
	})
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// streams is the runtime as the stream server calls it.
type streams struct{ r *Runtime }

func (s streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	return s.r.ExecIn(ctx, id, cmd, sessionStreams(in, out, errOut, tty, resize))
}

func (s streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	return s.r.AttachTo(ctx, id, sessionStreams(in, out, errOut, tty, resize))
}

func (s streams) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	return s.r.ForwardPort(ctx, id, port, stream)
}

// sessionStreams keeps absent streams nil as interfaces.
func sessionStreams(in io.Reader, out, errOut io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) Streams {
	s := Streams{Stdin: in, TTY: tty, Resize: resize}
	if out != nil {
		s.Stdout = out
	}
	if errOut != nil {
		s.Stderr = errOut
	}
	return s
}
