package main

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/fence/keeper"
	"github.com/shoal-project/shoal/agent/gossip"
)

// An agent that comes back stops pods whose time is over before it looks at anything else,
// those of another boot excepted.
func TestStopOverdue(t *testing.T) {
	cfg := &config.Config{RunDir: t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	if err := stopOverdue(cfg, "boot", log); err != nil {
		t.Errorf("nothing was left: %v", err)
	}
	dir := keeper.Directory{Path: filepath.Join(fenceDir(cfg), "boot")}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	group := t.TempDir()
	procs := filepath.Join(group, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Put("uid", keeper.Target{Groups: []string{group}}); err != nil {
		t.Fatal(err)
	}
	if err := dir.SetDeadline(1 << 60); err != nil {
		t.Fatal(err)
	}
	if err := stopOverdue(cfg, "boot", log); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
		t.Fatal("its time was not over")
	default:
	}
	if err := dir.SetDeadline(keeper.Clock()); err != nil {
		t.Fatal(err)
	}
	if err := stopOverdue(cfg, "boot", log); err != nil {
		t.Error(err)
	}
	<-ended
}

// The list of mounts has no symbolic links: what is below one would never be written.
func TestVolumesToWriteAreNamedAsTheKernelNamesThem(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Mkdir(filepath.Join(dir, "pods"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{RunDir: t.TempDir(), RootDir: link, CgroupDriver: "cgroupfs"}
	g, err := newGuard(cfg, &api.Server{Client: fake.NewClientset()}, "boot", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	target := g.Target(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}})
	if want := filepath.Join(dir, "pods", "uid", "volumes"); target.Volumes != want {
		t.Errorf("%s, want %s", target.Volumes, want)
	}
}

// Who vouches for a node: all others of a small cluster, the same few of a large one; nobody
// where a coordinator would not know of it, and nobody knows who while none is heard.
func TestVoters(t *testing.T) {
	agent := func(name string) gossip.Member {
		return gossip.Member{Name: name, State: gossip.StateAlive, Meta: gossip.Meta{Role: gossip.RoleAgent, Votes: true}}
	}
	coordinator := gossip.Member{Name: "coordinator:c", State: gossip.StateAlive,
		Meta: gossip.Meta{Role: gossip.RoleCoordinator, Votes: true}}
	but := func(m gossip.Member, change func(*gossip.Member)) gossip.Member {
		change(&m)
		return m
	}
	self := but(agent("n"), func(m *gossip.Member) { m.Local = true })
	for name, c := range map[string]struct {
		members []gossip.Member
		want    string
	}{
		"all others": {[]gossip.Member{coordinator, agent("b"), self, agent("a")}, "[a b] true"},
		"those that live, and know of it": {[]gossip.Member{coordinator, self, agent("a"),
			but(agent("b"), func(m *gossip.Member) { m.State = gossip.StateDead }),
			but(agent("c"), func(m *gossip.Member) { m.State = gossip.StateLeaving }),
			but(agent("d"), func(m *gossip.Member) { m.Votes = false })}, "[a] true"},
		"one coordinator does not know of it": {[]gossip.Member{coordinator, self, agent("a"),
			but(coordinator, func(m *gossip.Member) { m.Votes = false })}, "[] true"},
		"one that is gone does not": {[]gossip.Member{coordinator, self, agent("a"),
			but(coordinator, func(m *gossip.Member) { m.Votes, m.State = false, gossip.StateDead })}, "[a] true"},
		"no coordinator is heard": {[]gossip.Member{self, agent("a")}, "[a] false"},
		"names are not proven": {[]gossip.Member{coordinator, agent("a"),
			but(self, func(m *gossip.Member) { m.Votes = false })}, "[] true"},
	} {
		names, known := voters("n", c.members)
		if got := fmt.Sprint(names, known); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	many := []gossip.Member{coordinator, self}
	for i := range 500 {
		many = append(many, agent(fmt.Sprintf("rack%d-%d", i/20, i)))
	}
	names, _ := voters("n", many)
	racks := map[string]int{}
	for _, n := range names {
		rack, _, _ := strings.Cut(n, "-")
		racks[rack]++
	}
	if len(names) != fence.MaxVoters || slices.Max(slices.Collect(maps.Values(racks))) >= fence.MaxVoters/2 {
		t.Errorf("%d of 500: %v", len(names), names)
	}
	fewer := slices.DeleteFunc(many, func(m gossip.Member) bool { return m.Name == names[0] })
	if again, _ := voters("n", fewer); len(again) != fence.MaxVoters || !isSubset(names[1:], again) {
		t.Errorf("one is gone, and of %v are left %v", names, again)
	}
}

func isSubset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}
