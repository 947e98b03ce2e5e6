package harness

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Cluster is a running one-machine cluster, to which Join adds agents.
type Cluster struct {
	Dir     string // of all the cluster's files
	NetNS   string // of the first machine
	Address string // of the first machine
	Bin     string // where the built programs are
	Name    string // unique; also the cgroup root
	// Prefix is put before the command that starts the daemons: a wrapper that
	// sets something which they inherit.
	Prefix []string
	// RunDir is for what a reboot may take; "": below Dir.
	RunDir string

	lan         *lan
	agents      []*Agent
	coordinator *exec.Cmd // of a cluster whose first machine is no node
}

// Start starts a cluster with `shoal up --detach`. Call Stop in the end.
// KEEP=1 in the environment leaves a cluster for inspection.
func Start(name string, flags ...string) (*Cluster, error) {
	c, err := Prepare(name)
	if err != nil {
		return nil, err
	}
	return c, c.Up(flags...)
}

// Prepare makes the machine and the directories of a cluster, for Up.
func Prepare(name string) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("whole clusters need root")
	}
	bin, err := binDir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "shoal-"+name+"-")
	if err != nil {
		return nil, err
	}
	// Users of pods with a user namespace come through to their containers.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Bin: bin, Name: filepath.Base(dir)}
	// The lan's name also names interfaces' namespaces: keep it short.
	if c.lan, err = newLAN("sh" + c.Name[len(c.Name)-8:]); err != nil {
		return nil, err
	}
	if c.NetNS, c.Address, err = c.lan.host(); err != nil {
		return nil, err
	}
	return c, c.importImages()
}

// binDir is SHOAL_BIN in the environment, or else the repository's bin folder,
// which `make build` fills.
func binDir() (string, error) {
	if bin := os.Getenv("SHOAL_BIN"); bin != "" {
		return bin, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			bin := filepath.Join(dir, "bin")
			if _, err := os.Stat(filepath.Join(bin, "shoal")); err != nil {
				return "", fmt.Errorf("%s/shoal is missing: run `make all test-images kubectl` first", bin)
			}
			return bin, nil
		}
	}
	return "", errors.New("not inside the repository")
}

// importImages puts the built image archives where the agent imports them from.
func (c *Cluster) importImages() error {
	if err := os.MkdirAll(c.path("images"), 0o755); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(c.Bin, "*images", "*.tar"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		if err := os.Link(a, c.path("images", filepath.Base(a))); err != nil {
			data, err := os.ReadFile(a)
			if err != nil {
				return err
			}
			if err := os.WriteFile(c.path("images", filepath.Base(a)), data, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

// Up runs `shoal up --detach` with the cluster's own directories.
func (c *Cluster) Up(flags ...string) error {
	args := append([]string{
		"up", "--detach", "--data-dir", c.Dir, "--node-name", "node1", "--node-ip", c.Address,
		"--root-dir", c.path("kubelet"), "--pod-logs-dir", c.path("pod-logs"), "--container-logs-dir", c.path("container-logs"),
		"--run-dir", cmp.Or(c.RunDir, c.path("run")), "--cni-conf-dir", c.path("cni-conf"), "--cni-bin-dir", c.path("cni-bin"),
		"--cgroup-root", "/" + c.Name,
		// However full the disk of the machine that tests.
		"--eviction-hard", "nodefs.available=50Mi,imagefs.available=50Mi",
	}, flags...)
	up := append([]string{filepath.Join(c.Bin, "shoal")}, args...)
	command := append(slices.Clone(c.Prefix), named("node1", up...)...)
	out, err := in(c.NetNS, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("shoal up: %w\n%s%s", err, out, c.Logs())
	}
	return nil
}

// Logs returns the end of each daemon's log.
func (c *Cluster) Logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(c.path("log", "*.log"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(f), data[max(0, len(data)-4000):])
	}
	return b.String()
}

// Down runs `shoal down` with extra flags.
func (c *Cluster) Down(flags ...string) error {
	out, err := in(c.NetNS, filepath.Join(c.Bin, "shoal"),
		append([]string{"down", "--data-dir", c.Dir}, flags...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("shoal down: %w\n%s", err, out)
	}
	return nil
}

// Stop takes the cluster down with --purge and returns an error if anything of
// it is left: a process, mount, interface, nftables table, cgroup or file.
func (c *Cluster) Stop() error {
	if os.Getenv("KEEP") != "" {
		return nil
	}
	var errs []error
	for _, a := range slices.Clone(c.agents) {
		errs = append(errs, a.Stop())
	}
	if c.coordinator != nil {
		errs = append(errs, c.stopCoordinator())
	} else {
		errs = append(errs, c.Down("--purge"))
	}
	errs = append(errs, c.leftovers(c.NetNS), c.lan.close())
	if _, err := os.Stat(c.Dir); err == nil && c.coordinator == nil {
		var left []string
		_ = filepath.WalkDir(c.Dir, func(p string, _ os.DirEntry, _ error) error { left = append(left, p); return nil })
		if len(left) > 1 {
			errs = append(errs, fmt.Errorf("files left: %v", left[:min(len(left), 10)]))
		}
	}
	errs = append(errs, os.RemoveAll(c.Dir))
	if c.RunDir != "" {
		errs = append(errs, os.RemoveAll(c.RunDir))
	}
	return errors.Join(errs...)
}

// leftovers reports what a stopped cluster forgot on its machine.
func (c *Cluster) leftovers(netns string) error {
	var errs []error
	if m, err := mountsBelow(c.Dir); err != nil || len(m) > 0 {
		errs = append(errs, fmt.Errorf("mounts left: %v %w", m, err))
	}
	if left, err := leftInterfaces(netns); err != nil || len(left) > 0 {
		errs = append(errs, fmt.Errorf("interfaces left: %v %v", left, err))
	}
	if out, err := in(netns, "nft", "list", "tables").Output(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		errs = append(errs, fmt.Errorf("nftables left: %s %v", out, err))
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // v2, and v1 or hybrid
		if groups, err := filepath.Glob(pattern + c.Name); err != nil || len(groups) > 0 {
			errs = append(errs, fmt.Errorf("cgroups left: %v %v", groups, err))
		}
	}
	var none *exec.ExitError // pgrep's status 1: no process matched
	if out, err := exec.Command("pgrep", "-af", c.Dir).Output(); len(out) > 0 {
		errs = append(errs, fmt.Errorf("processes left: %s", out))
	} else if !errors.As(err, &none) || none.ExitCode() != 1 {
		errs = append(errs, fmt.Errorf("look for processes left: %w", err))
	}
	return errors.Join(errs...)
}

// Run runs a command on the first machine and returns its standard output.
func (c *Cluster) Run(name string, args ...string) (string, error) {
	cmd := in(c.NetNS, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

// Command returns a command of one of the built programs on the first machine.
func (c *Cluster) Command(program string, args ...string) *exec.Cmd {
	return in(c.NetNS, filepath.Join(c.Bin, program), args...)
}

// KubectlCommand returns a kubectl command with the admin's kubeconfig.
func (c *Cluster) KubectlCommand(args ...string) *exec.Cmd {
	cmd := in(c.NetNS, filepath.Join(c.Bin, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir, "KUBECACHEDIR="+c.path("kubectl-cache"))
	return cmd
}

// Kubeconfig is the admin's.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// Kubectl runs kubectl with stdin and returns standard output; the error holds
// standard error.
func (c *Cluster) Kubectl(stdin string, args ...string) (string, error) {
	cmd := c.KubectlCommand(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// Must is Kubectl that fails the test.
func (c *Cluster) Must(t testing.TB, args ...string) string {
	t.Helper()
	return c.MustWith(t, "", args...)
}

// MustWith is Must with standard input, for manifests.
func (c *Cluster) MustWith(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Eventually calls ok until it returns true, for at most a minute; what is
// called gives the reason that the failure shows. It asks again and again: other
// processes' states, and what commands print, have no events here.
func Eventually(t testing.TB, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		done, seen := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute; last seen: %s", what, seen)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Pid returns the process of a daemon that shoal supervises: "coordinator",
// "agent".
func (c *Cluster) Pid(daemon string) (int, error) {
	data, err := os.ReadFile(c.path("log", daemon+".pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// Kill ends a daemon with SIGKILL and waits until its supervisor has started
// it again, under another pid.
func (c *Cluster) Kill(t testing.TB, daemon string) {
	t.Helper()
	old, err := c.Pid(daemon)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	Eventually(t, daemon+" is back", func() (bool, string) {
		pid, err := c.Pid(daemon)
		return err == nil && pid != old, fmt.Sprint(pid, err)
	})
}

// Settled waits until a daemon has run for so long (10 s) that the supervisor will start it
// again at once: after some that were killed early it waits for up to five seconds, in
// which a node is called NotReady.
func (c *Cluster) Settled(t testing.TB, daemon string) {
	t.Helper()
	Eventually(t, daemon+" has run for a while", func() (bool, string) {
		pid, err := c.Pid(daemon)
		if err != nil {
			return false, err.Error()
		}
		age, err := processAge(pid)
		return err == nil && age > 11*time.Second, fmt.Sprint(age, err)
	})
}

// processAge is how long a process has run, by the clock that began with the machine
// (proc(5): uptime, and starttime in hundredths of a second).
func processAge(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	now, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	start, err := strconv.ParseFloat(fields[19], 64)
	if err != nil {
		return 0, err
	}
	up, err := strconv.ParseFloat(strings.Fields(string(now))[0], 64)
	return time.Duration((up - start/100) * float64(time.Second)), err
}

// SupervisorPid is the pid of `shoal up` itself.
func (c *Cluster) SupervisorPid() (int, error) {
	data, err := os.ReadFile(c.path("shoal.pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
