package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lan is the network namespace that is the world outside the machines of this run.
var lan = fmt.Sprintf("shoal-fleet-%d", os.Getpid())

// container is a systemd-nspawn machine: an overlay of the root file system,
// with directories of its own where overlays cannot lie on an overlay.
type container struct {
	dir, cache string
	own        []string // directories on the disk; nil: ownDirs
	root       string
	log        *os.File
	cmd        *exec.Cmd
	done       chan struct{} // closed when nspawn has ended
	leader     int           // the machine's first process
	shared     string        // a directory of the world that the machine has at /shared; empty: none
	second     string        // name of a machine beside the first one; empty: it is the first
}

// group names the machine's control groups.
func (c *container) group() string { return lan + "-" + nodeName(c) }

// ownDirs are on the disk, outside the overlay.
var ownDirs = []string{"var/lib/shoal", "var/lib/kubelet", "var/log"}

// onDisk are the machine's directories outside the overlay.
func (c *container) onDisk() []string {
	if c.own != nil {
		return c.own
	}
	return ownDirs
}

// newContainer makes the machine's root and network; it does not run yet.
func newContainer(ctx context.Context, dir, cache string, own ...string) (*container, error) {
	c := &container{dir: dir, cache: cache, own: own, root: filepath.Join(dir, "root")}
	for _, d := range append([]string{"root", "upper", "work"}, c.onDisk()...) {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(cache, "rootfs"),
		filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := syscall.Mount("overlay", c.root, "overlay", 0, layers); err != nil {
		return nil, fmt.Errorf("mount the machine's root: %w", err)
	}
	for _, d := range c.onDisk() {
		if err := os.MkdirAll(filepath.Join(c.root, d), 0o755); err != nil {
			return nil, errors.Join(err, c.remove())
		}
	}
	for _, args := range []string{
		"netns add " + lan, "-n " + lan + " link set lo up", "-n " + lan + " link add br0 type bridge",
		"-n " + lan + " addr add 10.97.0.1/24 dev br0", "-n " + lan + " link set br0 up",
	} {
		if err := command(ctx, "ip", strings.Fields(args)...); err != nil {
			return nil, errors.Join(err, c.remove())
		}
	}
	var err error
	c.log, err = os.Create(filepath.Join(dir, "console.log"))
	return c, err
}

// launcher puts itself into control groups of its own, which become the
// machine's roots, and turns into nspawn.
const launcher = `name=$1; shift
for c in /sys/fs/cgroup/*/; do
	[ -w "$c/cgroup.procs" ] || continue
	mkdir -p "$c/$name"
	for f in cpuset.cpus cpuset.mems; do [ ! -f "$c/$f" ] || cat "$c/$f" >"$c/$name/$f"; done
	echo $$ >"$c/$name/cgroup.procs"
done
if [ -w /sys/fs/cgroup/cgroup.procs ]; then mkdir -p "/sys/fs/cgroup/$name"; echo $$ >"/sys/fs/cgroup/$name/cgroup.procs"; fi
exec "$@"`

// unitsTime bounds a boot, which takes some seconds: a machine for which this one has, say,
// no inotify instances left (fs.inotify.max_user_instances) would hang for ever.
const unitsTime = 2 * time.Minute

// boot starts the machine and waits until its units are up.
func (c *container) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, unitsTime,
		fmt.Errorf("%s did not start its units within %s; see its console.log", nodeName(c), unitsTime))
	defer cancel()
	args := []string{"--net=/run/netns/" + lan, "--", "/bin/sh", "-c", launcher, "launcher", c.group(),
		"systemd-nspawn", "-M", cmp.Or(c.second, "machine"), "-D", c.root, "--register=no", "--keep-unit",
		"--network-bridge=br0", "--kill-signal=SIGRTMIN+3",
		"--capability=all", "--system-call-filter=add_key keyctl bpf", "--resolv-conf=off", "--timezone=off", "--console=pipe"}
	for _, d := range c.onDisk() {
		args = append(args, "--bind="+filepath.Join(c.dir, d)+":/"+d)
	}
	if c.shared != "" {
		args = append(args, "--bind="+c.shared+":/shared")
	}
	c.cmd = exec.Command("nsenter", append(args, "-b")...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the rig, which powers it off
	c.cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network")
	if err := c.cmd.Start(); err != nil {
		return err
	}
	c.done = make(chan struct{})
	go func() { _ = c.cmd.Wait(); close(c.done) }()
	return c.find(ctx, 0)
}

// find waits for a first process other than old and until it has started its
// units.
func (c *container) find(ctx context.Context, old int) error {
	for {
		if err := c.pause(ctx); err != nil {
			return err
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.cmd.Process.Pid, c.cmd.Process.Pid))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		if pid == 0 || pid == old {
			continue
		}
		c.leader = pid
		if out, _ := c.sh(ctx, "systemctl is-system-running || true"); out == "running" || out == "degraded" {
			return nil
		}
	}
}

// pause waits a little for a machine, which has no event that tells of its
// state; an error is its end or the context's.
func (c *container) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
		return errors.New("the machine is off")
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}

func (c *container) sh(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(c.leader), "-a", "--", "/bin/sh", "-c", prelude+script)
	out, err := cmd.CombinedOutput()
	text := string(bytes.TrimSpace(out))
	if err != nil {
		return text, fmt.Errorf("%w: %s", err, text)
	}
	return text, nil
}

// reboot runs a command that reboots the machine and waits until it is up.
func (c *container) reboot(ctx context.Context) error {
	old := c.leader
	if _, err := c.sh(ctx, "systemctl --no-block reboot"); err != nil {
		return err
	}
	return c.rebooted(ctx, old)
}

// rebooted waits until a machine whose first process was another one is up again.
func (c *container) rebooted(ctx context.Context, old int) error {
	err := c.find(ctx, old)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return c.boot(ctx) // nspawn left the restart to us
}

// off waits until the machine has powered itself off.
func (c *container) off(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return nil
	}
}

// cut ends the machine as a power cut does.
func (c *container) cut() {
	_ = syscall.Kill(c.leader, syscall.SIGKILL)
	_ = c.cmd.Process.Kill()
	<-c.done
	// The kernel takes the network apart later; until then nspawn finds the name taken.
	link := "vb-" + cmp.Or(c.second, "machine")
	for range 200 {
		if exec.Command("nsenter", "--net=/run/netns/"+lan, "ip", "link", "show", link).Run() != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// remove ends the machine and takes away what was made for it.
func (c *container) remove() error {
	if c.done != nil {
		_ = syscall.Kill(c.leader, syscall.Signal(34+4)) // systemd: power off
		select {
		case <-c.done:
		case <-time.After(20 * time.Second):
			_ = c.cmd.Process.Kill()
			_ = syscall.Kill(c.leader, syscall.SIGKILL)
			<-c.done
		}
	}
	if c.log != nil {
		c.log.Close()
	}
	errs := []error{syscall.Unmount(c.root, syscall.MNT_DETACH)}
	if c.second != "" { // the network is the first one's
	} else if out, err := exec.Command("ip", "netns", "del", lan).CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("remove the network: %w: %s", err, out))
	}
	// Deepest first; groups that the machine left.
	// What ran in pods dies with the machine, but may take longer.
	script := "for c in /sys/fs/cgroup /sys/fs/cgroup/*/; do [ ! -d $c/" + c.group() + " ] || find $c/" + c.group() +
		" -depth -type d -exec rmdir {} + || bad=1; done; [ -z \"${bad:-}\" ]"
	for try := 0; ; try++ {
		out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput()
		if err == nil {
			break
		}
		if try == 50 {
			errs = append(errs, fmt.Errorf("remove control groups: %w: %s", err, out))
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return errors.Join(errs...)
}
