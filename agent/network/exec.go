package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// Limits of plugins. Those of ADD and DEL are the kubelet's for the runtime, which
// hands them to plugins: runtimeRequestTimeout, and twice that for a new sandbox.
const (
	// askTime is how long STATUS, CHECK and VERSION may take, which only look: the
	// node's status waits for them.
	askTime = 10 * time.Second
	// gcTime is how long GC may take, for which ADD and DEL wait (CNI SPEC, section 3).
	gcTime = 30 * time.Second
	// closeTime is how long a plugin's output is read after its end: what it started
	// may have it open.
	closeTime = time.Second
	// busyTries and busyPause are for a plugin that is being installed.
	busyTries = 5
	busyPause = time.Second
)

// programs runs plugins. Unlike libcni's own it ends what a plugin started, as
// delegates, with the plugin, and waits for no output of what outlives it.
type programs struct {
	version.PluginDecoder
}

var _ invoke.Exec = (*programs)(nil)

// FindInPath implements invoke.Exec.
func (*programs) FindInPath(plugin string, dirs []string) (string, error) {
	return invoke.FindInPath(plugin, dirs)
}

// ExecPlugin implements invoke.Exec.
func (*programs) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	for try := 1; ; try++ {
		out, err := runPlugin(ctx, path, stdin, env)
		if try == busyTries || !errors.Is(err, unix.ETXTBSY) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(busyPause):
		}
	}
}

func runPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	began := time.Now()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, path)
	c.Env, c.Stdin, c.Stdout, c.Stderr = env, bytes.NewReader(stdin), &stdout, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
	c.WaitDelay = closeTime
	err := c.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		return stdout.Bytes(), nil
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, stopped(ctx, path, env, time.Since(began))
	case !errors.As(err, &exit):
		return nil, fmt.Errorf("run plugin %s: %w", filepath.Base(path), err)
	}
	return nil, answered(path, env, err, stdout.Bytes(), stderr.Bytes())
}

// stopped is the error of a plugin that had no more time, or whose caller has gone.
func stopped(ctx context.Context, path string, env []string, took time.Duration) error {
	what := "was ended"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		what = "did not answer in time and was ended"
	}
	return fmt.Errorf("plugin %s: its %s %s after %s: %w",
		filepath.Base(path), verb(env), what, took.Round(100*time.Millisecond), ctx.Err())
}

// answered is the error that a plugin wrote, or what can be told of one that did not.
func answered(path string, env []string, exit error, stdout, stderr []byte) error {
	e := &types.Error{}
	if json.Unmarshal(stdout, e) == nil && (e.Msg != "" || e.Code != 0) {
		return e
	}
	said := strings.TrimSpace(string(stderr))
	if said == "" {
		said = strings.TrimSpace(string(stdout))
	}
	if said == "" {
		said = "it says nothing"
	}
	return fmt.Errorf("plugin %s: its %s failed with no error that can be read: %w: %.1000s",
		filepath.Base(path), verb(env), exit, said)
}

func verb(env []string) string {
	v := "call"
	for _, e := range env {
		if s, ok := strings.CutPrefix(e, "CNI_COMMAND="); ok {
			v = s
		}
	}
	return v
}
