package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/fence/keeper"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/pod"
	podrecord "github.com/shoal-project/shoal/agent/record"
)

// isolated is the reason of events of pods that wait for their node's hold.
const isolated = "Isolated"

// stopOverdue stops pods of an agent of before whose time is over. It needs nothing but
// the directory of this boot.
func stopOverdue(cfg *config.Config, boot string, log *slog.Logger) error {
	unread, err := keeper.Directory{Path: filepath.Join(fenceDir(cfg), boot)}.StopOverdue()
	if unread != nil {
		log.Warn("the deadline of the node's pods cannot be read, so it counts as past", "err", unread)
	}
	if err != nil {
		return fmt.Errorf("stop pods whose time is over: %w", err)
	}
	return nil
}

// newGuard guards pods that must not outlive the node's isolation. Nil where nobody could:
// an outside runtime starts containers whatever the agent thinks of it, and without an API
// nothing is replaced.
func newGuard(cfg *config.Config, server *api.Server, boot string, log *slog.Logger) (*fence.Guard, error) {
	if cfg.ContainerRuntimeEndpoint != "" || !server.Configured() {
		return nil, nil
	}
	groups, err := cgroup.Open(cgroup.Driver(cfg.CgroupDriver))
	if err != nil {
		return nil, err
	}
	// As the kernel shows it in the list of mounts.
	pods, err := filepath.EvalSymlinks(filepath.Join(cfg.RootDir, "pods"))
	if err != nil {
		return nil, err
	}
	dir := keeper.Directory{Path: filepath.Join(fenceDir(cfg), boot)}
	if err := removeOthers(fenceDir(cfg), boot); err != nil {
		return nil, fmt.Errorf("remove what other boots left: %w", err)
	}
	g := &fence.Guard{
		Directory: dir,
		Target: func(p *corev1.Pod) keeper.Target {
			return keeper.Target{
				Groups:  groups.Directories(cgroupOf(tree(cfg), p)),
				Volumes: filepath.Join(pods, string(p.UID), "volumes"),
			}
		},
		Keep:    func(ctx context.Context) error { return startKeeper(ctx, cfg, dir) },
		Confirm: func(ctx context.Context, p *corev1.Pod) error { return confirm(ctx, server, p) },
		Changed: func() {},
		Log:     log,
	}
	return g, g.Open()
}

// vouchBy has other nodes prolong the guard's hold when no coordinator does.
func vouchBy(g *fence.Guard, node string, group *gossip.Group) {
	if g == nil || group == nil {
		return
	}
	g.Node, g.Ask = node, group.Ask
	g.Voters = func() ([]string, bool) { return voters(node, group.Members()) }
}

// voters are the nodes that are to vouch for this one, of a large cluster some that are
// anywhere in it: those with the lowest hash, so that they stay the same. It is not known
// who may while no coordinator is heard, and nobody may if one does not know of it.
func voters(node string, members []gossip.Member) (names []string, known bool) {
	own := false
	for _, m := range members {
		switch {
		case m.Local:
			own = m.Votes
		case m.State != gossip.StateAlive:
		case m.Role == gossip.RoleCoordinator:
			if known = true; !m.Votes {
				return nil, true
			}
		case m.Role == gossip.RoleAgent && m.Votes:
			names = append(names, m.Name)
		}
	}
	if !own {
		return nil, true
	}
	if len(names) > fence.MaxVoters {
		rank := map[string][sha256.Size]byte{}
		for _, n := range names {
			rank[n] = sha256.Sum256([]byte(node + "/" + n))
		}
		slices.SortFunc(names, func(a, b string) int {
			x, y := rank[a], rank[b]
			return bytes.Compare(x[:], y[:])
		})
		names = names[:fence.MaxVoters]
	}
	slices.Sort(names)
	return names, known
}

func fenceDir(cfg *config.Config) string { return filepath.Join(cfg.RunDir, "fence") }

// endKeepers ends the process that stops pods: they have ended.
func endKeepers(cfg *config.Config) error {
	list, err := os.ReadDir(fenceDir(cfg))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range list {
		err = errors.Join(err, keeper.Directory{Path: filepath.Join(fenceDir(cfg), e.Name())}.End())
	}
	return err
}

func removeOthers(dir, keep string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range list {
		if e.Name() != keep {
			err = errors.Join(err, beneath.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// Timing of what pods wait for.
const (
	keeperWait  = 2 * time.Second
	confirmWait = 3 * time.Second
)

// startKeeper starts shoal-fence, which lies beside this program, and returns when it
// keeps. It goes on when this process ends.
func startKeeper(ctx context.Context, cfg *config.Config, dir keeper.Directory) error {
	args := []string{"-directory", dir.Path}
	if cfg.WatchdogDevice != "" {
		args = append(args, "-watchdog", cfg.WatchdogDevice)
	}
	if cfg.ResetUnstoppable {
		args = append(args, "-reset")
	}
	cmd := exec.Command(beside("shoal-fence"), args...)
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: install shoal-fence beside shoal-agent", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, keeperWait)
	defer cancel()
	for {
		if kept, err := dir.Kept(); err != nil || kept {
			return err
		}
		select {
		case err := <-ended:
			if kept, kerr := dir.Kept(); kept && kerr == nil {
				return nil // another was first
			}
			return fmt.Errorf("shoal-fence has ended: %w", errors.Join(err, errors.New("see the log")))
		case <-ctx.Done():
			return errors.New("shoal-fence does not keep yet")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// confirm asks the API, past all caches, whether it still has a pod that shall run.
func confirm(ctx context.Context, server *api.Server, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, confirmWait)
	defer cancel()
	got, err := server.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case got.UID != p.UID:
		return errors.New("another pod has its name")
	case got.DeletionTimestamp != nil:
		return errors.New("it is being deleted")
	}
	return nil
}

func permit(g *fence.Guard) step {
	return func(ctx context.Context, s *pod.Setting) error {
		if err := g.Permit(ctx, s.Pod); err != nil {
			return &pod.Fault{Reason: isolated, Message: err.Error()}
		}
		return nil
	}
}

func unguard(g *fence.Guard) step {
	return func(_ context.Context, s *pod.Setting) error { return g.Release(s.Pod.UID) }
}

// mayRun is what the runtime asks before a container's program begins; nil: nothing.
func mayRun(g *fence.Guard) func(podUID string) error {
	if g == nil {
		return nil
	}
	return func(uid string) error { return g.Check(types.UID(uid)) }
}

// guardRunning guards pods that an agent of before may have started, so that nothing is
// promised of them before.
func guardRunning(g *fence.Guard, records map[string]*podrecord.Pod) error {
	if g == nil {
		return nil
	}
	for _, r := range records {
		if r.Pod == nil || r.Released {
			continue
		}
		if err := g.Adopt(r.Pod); err != nil {
			return fmt.Errorf("guard pod %s/%s: %w", r.Pod.Namespace, r.Pod.Name, err)
		}
	}
	return nil
}
