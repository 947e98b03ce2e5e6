package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
	"github.com/shoal-project/shoal/tests/leak"
)

// TestMain runs the tests in a network and mount namespace of their own, and
// is a CNI plugin when it is called as one.
func TestMain(m *testing.M) {
	if cmd := os.Getenv("CNI_COMMAND"); cmd != "" {
		plugin(cmd)
		return
	}
	// parsers only
	fuzzing := slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") })
	if os.Getenv("SHOAL_TEST_NETNS") == "" && !fuzzing {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), "SHOAL_TEST_NETNS=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.Check(m)
}

// plugin is a network that writes down how it is called.
func plugin(cmd string) {
	if cmd == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}`)
		return
	}
	f, err := os.OpenFile(os.Getenv("SHOAL_TEST_CALLS"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Println(`{"code":100,"msg":"no log"}`)
		os.Exit(1)
	}
	stdin := make([]byte, 1<<16)
	n, _ := os.Stdin.Read(stdin)
	ports := ""
	if strings.Contains(string(stdin[:n]), `"hostPort":8080`) {
		ports = " port 8080"
	}
	ns := "none"
	if os.Getenv("CNI_NETNS") != "" {
		ns = "ns"
	}
	var conf struct {
		RuntimeConfig struct{ Bandwidth json.RawMessage }
	}
	_ = json.Unmarshal(stdin[:n], &conf)
	bandwidth := ""
	if b := conf.RuntimeConfig.Bandwidth; b != nil {
		bandwidth = " " + string(b)
	}
	fmt.Fprintf(f, "%s %s %s%s%s\n", cmd, os.Getenv("CNI_CONTAINERID"), ns, ports, bandwidth)
	f.Close()
	if cmd == "ADD" {
		fmt.Println(`{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.9.8.7/24","interface":1}]}`)
	}
}

func newManager(t *testing.T) *Manager {
	t.Helper()
	dir := t.TempDir()
	m := New(Config{
		ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin"), CacheDir: filepath.Join(dir, "cache"),
		StateDir: filepath.Join(dir, "state"), ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	})
	t.Cleanup(func() {
		if err := m.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestOwnNetwork(t *testing.T) {
	ctx := context.Background()
	m := newManager(t)
	pod := podnet.Sandbox{Namespace: "ns", Name: "p", ID: "abc", IfName: "eth0", NetNS: nstest.New(t)}
	if err := m.Status(ctx); !errors.Is(err, ErrNotReady) || err.Error() != "cni plugin not initialized" {
		t.Errorf("before the pod CIDR is known: %v", err)
	}
	if _, err := m.Setup(ctx, pod); !errors.Is(err, ErrNotReady) {
		t.Errorf("setup before the pod CIDR is known: %v", err)
	}
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}); err != nil {
		t.Fatal(err)
	}
	if err := m.Status(ctx); err != nil {
		t.Error(err)
	}
	ips, err := m.Setup(ctx, pod)
	if err != nil || fmt.Sprint(ips) != "[10.244.3.2]" {
		t.Fatalf("got %v, %v", ips, err)
	}
	if err := m.Check(ctx, pod); err != nil {
		t.Error(err)
	}
	// A sandbox that is gone leaves no address behind, one that lives keeps its.
	if _, err := m.Setup(ctx, podnet.Sandbox{ID: "old", IfName: "eth0", NetNS: nstest.New(t)}); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(ctx, []string{"abc"}); err != nil {
		t.Fatal(err)
	}
	if ids, _ := m.own.Owners(); !slices.Equal(ids, []string{"abc"}) {
		t.Errorf("owners %v", ids)
	}
	for range 2 {
		if err := m.Teardown(ctx, pod); err != nil {
			t.Error(err)
		}
	}
}

func TestThirdPartyNetwork(t *testing.T) {
	ctx := context.Background()
	m := newManager(t)
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}); err != nil {
		t.Fatal(err)
	}
	before := podnet.Sandbox{ID: "before", IfName: "eth0", NetNS: nstest.New(t)}
	if _, err := m.Setup(ctx, before); err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("SHOAL_TEST_CALLS", calls)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{m.cfg.ConfDir, m.cfg.BinDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(exe, filepath.Join(m.cfg.BinDir, "fancy")); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(m.cfg.ConfDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("00-broken.conflist", "{")
	write("10-fancy.conflist", `{"cniVersion":"1.0.0","name":"fancy","plugins":[{"type":"fancy","capabilities":{"portMappings":true}}]}`)
	pod := podnet.Sandbox{Namespace: "ns", Name: "p", ID: "abc", IfName: "eth0", NetNS: nstest.New(t),
		HostPorts: []podnet.HostPort{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}}
	for range 2 { // the second time from the cache
		if ips, err := m.Setup(ctx, pod); err != nil || fmt.Sprint(ips) != "[10.9.8.7]" {
			t.Fatalf("got %v, %v", ips, err)
		}
	}
	if err := m.Status(ctx); err != nil {
		t.Error(err)
	}
	// The configuration may be gone at the end, and the namespace too.
	if err := os.RemoveAll(m.cfg.ConfDir); err != nil {
		t.Fatal(err)
	}
	_ = unix.Unmount(pod.NetNS, unix.MNT_DETACH)
	_ = os.Remove(pod.NetNS)
	for _, p := range []podnet.Sandbox{pod, pod, before} {
		if err := m.Teardown(ctx, p); err != nil {
			t.Error(err)
		}
	}
	if ids, _ := m.own.Owners(); len(ids) != 0 {
		t.Errorf("owners %v", ids)
	}
	got, err := os.ReadFile(calls)
	if err != nil || string(got) != "ADD abc ns port 8080\nDEL abc none port 8080\n" {
		t.Errorf("calls %q, %v", got, err)
	}
}

func TestPeers(t *testing.T) {
	cidr := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	other := []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}
	at := netip.MustParseAddrPort("192.0.2.1:7946")
	ips := []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.9")}
	agent := gossip.Meta{Role: gossip.RoleAgent}
	peers := peersOf([]gossip.Member{
		{Name: "me", Local: true, Addr: at, Meta: agent, PodCIDRs: cidr, NodeIPs: ips},
		{Name: "dead", State: gossip.StateDead, Addr: at, Meta: agent, PodCIDRs: other, NodeIPs: ips[1:]},
		{Name: "left", State: gossip.StateLeft, Addr: at, Meta: agent, PodCIDRs: cidr, NodeIPs: ips},
		{Name: "coordinator", State: gossip.StateAlive, Addr: at, Meta: gossip.Meta{Role: gossip.RoleCoordinator},
			PodCIDRs: other, NodeIPs: ips},
		{Name: "no address of the API", State: gossip.StateAlive, Addr: at, Meta: agent, PodCIDRs: cidr},
		{Name: "two", State: gossip.StateAlive, Addr: at, Meta: agent, PodCIDRs: cidr, NodeIPs: ips},
	})
	if len(peers) != 2 || peers[0].Via.String() != "192.0.2.9" || peers[1].Via.String() != "192.0.2.9" {
		t.Errorf("got %v", peers)
	}
}
