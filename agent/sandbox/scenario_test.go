package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/cni/podnet"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestScenarios plays the files of testdata. A line "> command" is done; the
// lines up to the next one tell what came of it: what the network was asked, what
// went wrong, what the log says, and each sandbox that is not as before, with what
// there is of it. The commands:
//
//	run NAME OPTION...   makes a sandbox: host-network, host-ipc, one-pid, users, group (the pod's)
//	outdate NAME
//	stop NAME
//	remove NAME
//	network ANSWER       of now on: works, setup fails, teardown fails, all fails; in the middle of a
//	                     setup: agent ends, disk full
//	disk full|free       is that of the records
//	end NAME             kills the pause process
//	lose NAME WHAT       somebody unmounts or removes it: a file, or a mount such as ns/net
//	check NAME           a container is to be made in it
//	reuse NAME           another process gets its number
//	damage NAME          writes something else over the record
//	connected            whose network is to be kept
//	restart              a new agent takes over
//	reboot               the same, and all that the kernel had is gone
func TestScenarios(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes namespaces and control groups")
	}
	transcript.Files(t, "testdata/*.txt", play)
}

// play does the commands of a script and returns it with what came of them.
func play(t *testing.T, script string) string {
	r := newRig(t)
	return transcript.Play(script, func(command string) string {
		r.do(strings.Fields(command))
		return r.news()
	})
}

// rig is a manager on directories and control groups of its own.
type rig struct {
	t       *testing.T
	m       *Manager
	cfg     Config
	net     *network
	names   map[string]string // id -> its name in the script
	groups  map[string]string // id -> control group
	holders map[string]*os.Process
	told    strings.Builder
	shown   map[string]string // name -> its last line
}

func newRig(t *testing.T) *rig {
	dir := t.TempDir()
	groups, err := cgroup.Open(cgroup.Driver(""))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t:       t,
		names:   map[string]string{},
		groups:  map[string]string{},
		holders: map[string]*os.Process{},
		shown:   map[string]string{},
	}
	r.net = &network{r: r, up: map[string]bool{}}
	r.cfg = Config{
		RecordDir:  filepath.Join(dir, "records"),
		RunDir:     filepath.Join(dir, "run"),
		CgroupRoot: "/shoal-test-" + NewID()[:8],
		Cgroups:    groups,
		Network:    r.net,
		Pause:      os.Getenv(pauseVariable),
		Log:        slog.New(slog.NewTextHandler(&r.told, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
	}
	// A file system of its own, so that it can be full.
	if err := os.Mkdir(r.cfg.RecordDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("records", r.cfg.RecordDir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(r.cfg.RecordDir, unix.MNT_DETACH) })
	t.Cleanup(r.powerOff)
	r.open()
	return r
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func (r *rig) open() {
	m, err := Open(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.m = m
}

// powerOff takes what a reboot takes.
func (r *rig) powerOff() {
	for id, p := range r.holders {
		_ = p.Kill()
		r.waitFor(id)
	}
	if err := errors.Join(r.cfg.Cgroups.Kill(r.cfg.CgroupRoot), r.cfg.Cgroups.Delete(r.cfg.CgroupRoot)); err != nil {
		r.t.Error(err)
	}
	for id := range r.names {
		for _, at := range []string{"ns/net", "ns/uts", "ns/ipc", "ns/user", "ns/pid", "shm"} {
			_ = netns.Remove(filepath.Join(r.cfg.RunDir, id, at))
		}
	}
	if err := os.RemoveAll(r.cfg.RunDir); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) do(words []string) {
	r.t.Helper()
	switch words[0] {
	case "run":
		r.run(words[1], words[2:])
	case "outdate":
		r.tell(r.m.Outdate(r.id(words[1])))
	case "stop":
		r.tell(r.m.Stop(r.t.Context(), r.id(words[1])))
	case "remove":
		r.tell(r.m.Remove(r.t.Context(), r.id(words[1])))
	case "network":
		r.net.answer = strings.Join(words[1:], " ")
	case "disk":
		r.fill(words[1] == "full")
	case "end":
		_ = r.holders[r.id(words[1])].Kill()
		r.waitFor(r.id(words[1]))
	case "lose":
		at := filepath.Join(r.cfg.RunDir, r.id(words[1]), words[2])
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			r.tell(os.Remove(at))
		}
	case "check":
		s, err := r.m.Get(r.id(words[1]))
		if err != nil {
			r.t.Fatal(err)
		}
		r.tell(r.m.Check(s))
		for _, name := range []string{"resolv.conf", "hostname", "hosts"} {
			if absent(filepath.Join(s.Dir, name)) {
				r.t.Errorf("there is no %s for a container", name)
			}
		}
	case "reuse":
		s, err := r.m.Get(r.id(words[1]))
		if err != nil {
			r.t.Fatal(err)
		}
		other := *s
		other.HolderPID = os.Getpid()
		r.m.note(other)
	case "damage":
		record := filepath.Join(r.cfg.RecordDir, r.id(words[1])+".json")
		if err := os.WriteFile(record, []byte("{}"), 0o600); err != nil {
			r.t.Fatal(err)
		}
	case "connected":
		all, ready := r.m.Connected()
		slices.Sort(all)
		fmt.Fprintf(&r.told, "to be kept: %d, ready:", len(all))
		for _, s := range ready {
			fmt.Fprintf(&r.told, " %s", s.ID)
		}
		r.told.WriteString("\n")
	case "restart":
		r.open()
	case "reboot":
		r.powerOff()
		r.open()
	default:
		r.t.Fatalf("unknown command %q", words)
	}
}

func (r *rig) tell(err error) {
	if err != nil {
		fmt.Fprintf(&r.told, "error: %v\n", err)
	}
}

// id is the newest sandbox of a name.
func (r *rig) id(name string) string {
	for id, n := range r.names {
		if n == name {
			return id
		}
	}
	return name
}

// run makes a sandbox in a goroutine, which the network may end.
func (r *rig) run(name string, options []string) {
	config := podConfig(name, options)
	if slices.Contains(options, "group") {
		config.Linux.CgroupParent = filepath.Join(r.cfg.CgroupRoot, name)
	}
	r.net.name = name
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s, err := r.m.Run(r.t.Context(), config, "")
		if r.tell(err); err == nil {
			r.names[s.ID] = name
		}
	}()
	<-ended
	for _, s := range r.m.List() {
		if r.names[s.ID] != "" {
			r.groups[s.ID] = s.Cgroup
		}
		if s.HolderPID > 0 && r.holders[s.ID] == nil {
			r.holders[s.ID], _ = os.FindProcess(s.HolderPID)
		}
	}
}

func podConfig(name string, options []string) *criv1.PodSandboxConfig {
	modes := &criv1.NamespaceOption{Pid: criv1.NamespaceMode_CONTAINER}
	for _, o := range options {
		switch o {
		case "host-network":
			modes.Network = criv1.NamespaceMode_NODE
		case "host-ipc":
			modes.Ipc = criv1.NamespaceMode_NODE
		case "one-pid":
			modes.Pid = criv1.NamespaceMode_POD
		case "users":
			ids := []*criv1.IDMapping{{HostId: 65536 * 16, Length: 65536}}
			modes.UsernsOptions = &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD, Uids: ids, Gids: ids}
		}
	}
	return &criv1.PodSandboxConfig{
		Metadata:    &criv1.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: "uid-" + name},
		Hostname:    name,
		Annotations: map[string]string{"example.com/of": name},
		PortMappings: []*criv1.PortMapping{
			{HostPort: 8080, ContainerPort: 80},
			{HostPort: 8053, ContainerPort: 53, Protocol: criv1.Protocol_UDP, HostIp: "192.0.2.1"},
			{ContainerPort: 81}, // nobody asked for
		},
		Linux: &criv1.LinuxPodSandboxConfig{
			SecurityContext: &criv1.LinuxSandboxSecurityContext{NamespaceOptions: modes},
		},
	}
}

func (r *rig) fill(full bool) {
	file := filepath.Join(r.cfg.RecordDir, "filler")
	if !full {
		_ = os.Remove(file)
		return
	}
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		r.t.Fatalf("the disk is not full: %v", err)
	}
}

// news is what was told since the last command, and the sandboxes that changed.
func (r *rig) news() string {
	out := r.told.String()
	r.told.Reset()
	for id, name := range r.names {
		out = strings.ReplaceAll(out, id, name)
	}
	out = ids.ReplaceAllString(out, "ID")
	out = strings.ReplaceAll(out, r.cfg.RunDir, "RUN")
	out = strings.ReplaceAll(out, r.cfg.RecordDir, "RECORDS")
	now := map[string]string{}
	for id, name := range r.names {
		now[name] = r.state(id)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] != r.shown[name] {
			out += name + ": " + now[name] + "\n"
		}
	}
	r.shown = now
	return out
}

// ids are those of sandboxes that have no name in the script.
var ids = regexp.MustCompile(`[0-9a-f]{64}`)

// state is what a sandbox says of itself, and what there is of it.
func (r *rig) state(id string) string {
	text := "unknown"
	if s, err := r.m.Get(id); err == nil {
		text = "not ready"
		if s.Ready {
			text = "ready"
		}
		for _, ip := range s.IPs {
			text += " " + ip.String()
		}
	}
	dir := filepath.Join(r.cfg.RunDir, id)
	has := []string{}
	add := func(what string, there bool) {
		if there {
			has = append(has, what)
		}
	}
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	add("record", exists(filepath.Join(r.cfg.RecordDir, id+".json")))
	add("files", exists(dir))
	add("group", r.cfg.Cgroups.Exists(r.group(id)))
	for _, kind := range []string{"user", "net", "uts", "ipc", "pid"} {
		add(kind, netns.Exists(filepath.Join(dir, "ns", kind)))
	}
	if p := r.holders[id]; p != nil && !netns.Exists(filepath.Join(dir, "ns/pid")) {
		r.waitFor(id)
	}
	add("pause", r.holders[id] != nil)
	add("shm", isMount(filepath.Join(dir, "shm")))
	add("network", r.net.up[id])
	return strings.Join(append([]string{text + ":"}, has...), " ")
}

// group is the one that was made for a sandbox, if the pod has none.
func (r *rig) group(id string) string {
	if g := r.groups[id]; g != "" {
		return g
	}
	return r.cfg.Cgroups.Driver().Child(r.cfg.CgroupRoot, "pod-"+id)
}

// waitFor waits until a pause process has ended; the manager may reap it first.
func (r *rig) waitFor(id string) {
	_, _ = r.holders[id].Wait()
	delete(r.holders, id)
}

// network tells what it is asked, and answers as the script wants.
type network struct {
	r      *rig
	name   string // of the sandbox that is made
	answer string
	up     map[string]bool
	given  byte
}

func (n *network) Name() string { return "fake" }

func (n *network) Setup(_ context.Context, s podnet.Sandbox) ([]netip.Addr, error) {
	n.r.names[s.ID] = n.name
	n.tell("setup", s)
	n.up[s.ID] = true
	switch n.answer {
	case "setup fails", "all fails":
		return nil, errors.New("no address is left")
	case "agent ends":
		runtime.Goexit()
	case "disk full":
		n.r.fill(true)
	}
	n.given++
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, n.given}), netip.MustParseAddr("fd00::1")}, nil
}

func (n *network) Teardown(_ context.Context, s podnet.Sandbox) error {
	n.tell("teardown", s)
	if n.answer == "teardown fails" || n.answer == "all fails" {
		return errors.New("no answer")
	}
	delete(n.up, s.ID)
	return nil
}

func (n *network) tell(what string, s podnet.Sandbox) {
	there := ""
	if !netns.Exists(s.NetNS) {
		there = ", whose namespace is gone"
	}
	// What it was promised to is on the disk before the network does a thing.
	if text, err := os.ReadFile(filepath.Join(n.r.cfg.RecordDir, s.ID+".json")); err == nil &&
		!strings.Contains(string(text), `"Network":"`+s.Network+`"`) {
		there += ", by a network that nobody wrote down"
	}
	fmt.Fprintf(&n.r.told, "network: %s %s%s\n", what, s.ID, there)
}

// TestNetworked: a pod's network is told what the pod's sandbox is made of.
func TestNetworked(t *testing.T) {
	s := &Sandbox{ID: "id", Config: podConfig("a", nil), Pins: netns.Pins{Net: "/run/net"}, Network: "fake"}
	want := podnet.Sandbox{
		ID:          "id",
		IfName:      "eth0",
		NetNS:       "/run/net",
		Namespace:   "ns",
		Name:        "a",
		UID:         "uid-a",
		Annotations: map[string]string{"example.com/of": "a"},
		HostPorts: []podnet.HostPort{
			{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: 8053, ContainerPort: 53, Protocol: "udp", HostIP: "192.0.2.1"},
		},
		Network: "fake",
	}
	if d := cmp.Diff(want, s.networked()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
