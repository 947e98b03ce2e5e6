package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/agent/oci"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shmSize is the size of a pod's /dev/shm, as containerd and Docker make it.
const shmSize = "65536k"

// makeDir makes the directory of the sandbox with all that is in it but the namespaces.
func makeDir(s *Sandbox) error {
	if err := oci.PrivateDir(s.Dir, mappedIDs(s)); err != nil {
		return fmt.Errorf("sandbox files: %w", err)
	}
	if err := writeFiles(s); err != nil {
		return err
	}
	if s.options().GetIpc() == criv1.NamespaceMode_NODE {
		return nil
	}
	return mountShm(s)
}

// writeFiles writes what every container of the sandbox sees in its /etc, where it is not there.
func writeFiles(s *Sandbox) error {
	resolv, err := resolvConf(s.Config.GetDnsConfig())
	if err != nil {
		return fmt.Errorf("sandbox files: %w", err)
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		hosts = []byte("127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	}
	for file, text := range map[string][]byte{
		s.ResolvConf(): resolv, s.HostnameFile(): []byte(Hostname(s) + "\n"), s.HostsFile(): hosts,
	} {
		if !absent(file) {
			continue // containers see it
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("sandbox files: %w", err)
		}
	}
	return nil
}

func mountShm(s *Sandbox) error {
	if err := os.MkdirAll(s.Shm(), 0o1777); err != nil {
		return fmt.Errorf("sandbox files: %w", err)
	}
	options := "mode=1777,size=" + shmSize
	if u, err := UserNamespace(s.Config); err == nil && u != nil {
		options += fmt.Sprintf(",uid=%d,gid=%d", u.GetUids()[0].GetHostId(), u.GetGids()[0].GetHostId())
	}
	err := unix.Mount("shm", s.Shm(), "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options)
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.Shm(), err)
	}
	return nil
}

// mappedIDs are those of the sandbox's user namespace, none without one.
func mappedIDs(s *Sandbox) oci.IDs {
	u, err := UserNamespace(s.Config)
	if err != nil || u == nil {
		return oci.IDs{}
	}
	return oci.IDs{UIDs: oci.IDMappings(u.GetUids()), GIDs: oci.IDMappings(u.GetGids())}
}

// Hostname is the name that the pod's processes see.
func Hostname(s *Sandbox) string {
	if h := s.Config.GetHostname(); h != "" && !s.HostNetwork() {
		return h
	}
	h, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return h
}

// resolvConf is the pod's DNS configuration, the node's without one.
func resolvConf(c *criv1.DNSConfig) ([]byte, error) {
	if len(c.GetServers())+len(c.GetSearches())+len(c.GetOptions()) == 0 {
		b, err := os.ReadFile("/etc/resolv.conf")
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return b, err
	}
	var b strings.Builder
	if len(c.GetSearches()) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.GetSearches(), " "))
	}
	for _, s := range c.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(c.GetOptions()) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(c.GetOptions(), " "))
	}
	return []byte(b.String()), nil
}

// inside runs on a thread in the new namespaces.
func inside(s *Sandbox) error {
	if s.Pins.UTS != "" {
		if err := unix.Sethostname([]byte(Hostname(s))); err != nil {
			return fmt.Errorf("set host name: %w", err)
		}
	}
	if s.Pins.Net != "" {
		if err := netns.LoopbackUp(); err != nil {
			return err
		}
	}
	return setSysctls(s)
}

// setSysctls writes the pod's kernel parameters. Only those that belong to a
// namespace of the pod's own may be set; containers could not see others.
func setSysctls(s *Sandbox) error {
	set := s.Config.GetLinux().GetSysctls()
	if _, ok := set["net.ipv4.ip_unprivileged_port_start"]; !ok && s.Pins.Net != "" {
		_ = writeSysctl("net.ipv4.ip_unprivileged_port_start", "0") // as containerd does by default
		if _, ok := set["net.ipv4.ping_group_range"]; !ok {
			_ = writeSysctl("net.ipv4.ping_group_range", "0 2147483647")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if !namespaced(k, s) {
			return fmt.Errorf("sysctl %q is not separate kernel parameter for this pod", k)
		}
		write := func() error { return writeSysctl(k, set[k]) }
		err := write()
		if u, uerr := UserNamespace(s.Config); errors.Is(err, os.ErrPermission) && uerr == nil && u != nil {
			err = asOwner(int(u.GetUids()[0].GetHostId()), write)
		}
		if err != nil {
			return fmt.Errorf("sysctl %q: %w", k, err)
		}
	}
	return nil
}

// asOwner runs fn as the user that a user namespace's root is on the node: the
// parameters of an IPC namespace are nobody else's, ipc_permissions in the
// kernel. Only the calling thread changes, which must be thrown away.
func asOwner(uid int, fn func() error) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("become user %d: %w", uid, errno)
	}
	err := fn()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return errors.Join(err, fmt.Errorf("become root again: %w", errno))
	}
	return err
}

func namespaced(name string, s *Sandbox) bool {
	name = strings.ReplaceAll(name, "/", ".")
	switch {
	case strings.HasPrefix(name, "net."):
		return s.Pins.Net != ""
	case strings.HasPrefix(name, "kernel.msg"), strings.HasPrefix(name, "kernel.shm"),
		name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
		return s.Pins.IPC != ""
	case name == "kernel.hostname", name == "kernel.domainname":
		return s.Pins.UTS != ""
	}
	return false
}

func writeSysctl(name, value string) error {
	if !strings.Contains(name, "/") {
		name = strings.ReplaceAll(name, ".", "/")
	}
	if strings.Contains(name, "..") {
		return errors.New("bad name")
	}
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644)
}

// makeNamespaces makes and pins the sandbox's namespaces.
func (m *Manager) makeNamespaces(s *Sandbox) error {
	if s.Pins.User != "" {
		return m.makeOwned(s)
	}
	if err := netns.Create(s.Pins, func() error { return inside(s) }); err != nil || s.PIDPin == "" {
		return err
	}
	var p *pause
	err := s.Pins.Do(func() (err error) {
		p, err = m.startPause(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, pauseUser)
		return err
	})
	if err != nil {
		return err
	}
	return m.holdPID(s, p)
}

// makeOwned makes a user namespace and the others as its own. A process has to
// be started in them first; it stays as the first of a shared PID namespace.
func (m *Manager) makeOwned(s *Sandbox) error {
	u, err := UserNamespace(s.Config)
	if err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{
		Cloneflags: s.Pins.Flags(), UidMappings: idMap(u.GetUids()), GidMappings: idMap(u.GetGids()),
		GidMappingsEnableSetgroups: true,
	}
	if s.PIDPin != "" {
		attr.Cloneflags |= syscall.CLONE_NEWPID
	}
	p, err := m.startPause(attr, pauseUserIn(u))
	if err != nil {
		return err
	}
	if err := netns.PinProcess(s.Pins, p.cmd.Process.Pid, func() error { return inside(s) }); err != nil {
		p.kill()
		return err
	}
	if s.PIDPin == "" {
		p.kill()
		return nil
	}
	return m.holdPID(s, p)
}

func idMap(list []*criv1.IDMapping) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, e := range list {
		out = append(out,
			syscall.SysProcIDMap{ContainerID: int(e.GetContainerId()), HostID: int(e.GetHostId()),
				Size: int(e.GetLength())})
	}
	return out
}

// holdPID records the first process of the shared PID namespace, with which
// the namespace ends, pins it, and only then lets the process outlive the agent.
func (m *Manager) holdPID(s *Sandbox, p *pause) error {
	s.HolderPID = p.cmd.Process.Pid
	if _, err := m.put(*s); err != nil {
		p.kill()
		return err
	}
	if err := netns.Pin(fmt.Sprintf("/proc/%d/ns/pid", s.HolderPID), s.PIDPin); err != nil {
		p.kill()
		return err
	}
	if err := m.limitPause(s); err != nil {
		p.kill()
		return err
	}
	if err := p.release(); err != nil {
		p.kill()
		return fmt.Errorf("release the pod's pause process: %w", err)
	}
	return nil
}

// limitPause puts the pause process under the pod's limits: a container that
// may trace it could have it take memory, processes and time of the agent's.
func (m *Manager) limitPause(s *Sandbox) error {
	groups := m.cfg.Cgroups
	if !groups.Exists(s.Cgroup) { // named by a client of the CRI that did not make it
		if err := groups.Ensure(s.Cgroup, cgroup.Resources{}); err != nil {
			return err
		}
	}
	return groups.AddPause(groups.Driver().Container(s.Cgroup, s.ID), s.HolderPID)
}

// releasePID ends the pause process, and with it all processes of the namespace.
func (m *Manager) releasePID(s *Sandbox) error {
	if s.PIDPin == "" {
		return nil
	}
	if holds(s) {
		if err := unix.Kill(s.HolderPID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end shared PID namespace: %w", err)
		}
	}
	s.HolderPID = 0
	return netns.Remove(s.PIDPin)
}

// holds tells whether the pause process lives: its number may be another's by now.
func holds(s *Sandbox) bool {
	return s.HolderPID > 0 && sameNamespace(fmt.Sprintf("/proc/%d/ns/pid", s.HolderPID), s.PIDPin)
}

func sameNamespace(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Ino == y.Ino && x.Dev == y.Dev
}

func unmountShm(s *Sandbox) error {
	if s.options().GetIpc() == criv1.NamespaceMode_NODE {
		return nil
	}
	err := unix.Unmount(s.Shm(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("unmount %s: %w", s.Shm(), err)
}
