package network

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// script is a plugin that does as its cases say, and else what is right. Each call is
// a line in the file calls.
const script = `#!/bin/sh
cd $(dirname "$0")
echo "$CNI_COMMAND $CNI_CONTAINERID" >>calls
cat >stdin-$CNI_COMMAND
case $CNI_COMMAND in
CASES
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}' ;;
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.9.8.7/24","interface":0}]}' ;;
esac
`

// scripted is a manager whose third party's network is such a plugin.
func scripted(t *testing.T, cases string) *Manager {
	t.Helper()
	m := newManager(t)
	m.third.request = 500 * time.Millisecond
	for _, dir := range []string{m.cfg.ConfDir, m.cfg.BinDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writePlugin(t, m, cases)
	conf := `{"cniVersion":"1.1.0","name":"scripted","plugins":[{"type":"scripted"}]}`
	if err := os.WriteFile(filepath.Join(m.cfg.ConfDir, "10-scripted.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}); err != nil {
		t.Fatal(err)
	}
	return m
}

// writePlugin writes the plugin anew.
func writePlugin(t *testing.T, m *Manager, cases string) {
	t.Helper()
	text := strings.Replace(script, "CASES", cases, 1)
	if err := os.WriteFile(filepath.Join(m.cfg.BinDir, "scripted"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// said is what is in a file of the plugin.
func said(t *testing.T, m *Manager, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.cfg.BinDir, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sandbox(t *testing.T, id string) podnet.Sandbox {
	return podnet.Sandbox{Namespace: "ns", Name: "p", UID: id, ID: id, IfName: podnet.Interface, NetNS: nstest.New(t)}
}

// alive tells whether the process runs whose number a plugin wrote down.
func alive(t *testing.T, m *Manager, file string) bool {
	t.Helper()
	pid := strings.TrimSpace(said(t, m, file))
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ") // who adopts it waits for it later
}

// TestPluginHangs: a plugin that does not answer is ended with all that it started, and
// the error says which and when.
func TestPluginHangs(t *testing.T) {
	t.Parallel()
	m := scripted(t, "ADD) sleep 600 & echo $! >child; sleep 601 ;;")
	began := time.Now()
	_, err := m.Setup(t.Context(), sandbox(t, "abc"))
	want := `plugin network "scripted": plugin type="scripted" failed (add): plugin scripted: its ADD did not ` +
		"answer in time and was ended after 1s: context deadline exceeded"
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %s", err, want)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	// It was killed with the plugin; the kernel ends it when it has a turn.
	for end := time.Now().Add(time.Minute); alive(t, m, "child"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what the plugin started runs on")
		}
	}
	// What it may have made is undone with what is known of it.
	if err := m.Teardown(t.Context(), sandbox(t, "abc")); err != nil {
		t.Error(err)
	}
}

// TestPluginLeavesDaemon: what outlives a plugin is the plugin's affair, also when it
// has the plugin's output open.
func TestPluginLeavesDaemon(t *testing.T) {
	t.Parallel()
	m := scripted(t, "STATUS) sleep 30 & echo $! >child ;;")
	m.third.request = time.Minute
	began := time.Now()
	if err := m.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if !alive(t, m, "child") {
		t.Error("it was ended")
	}
	var pid int
	if err := json.Unmarshal([]byte(said(t, m, "child")), &pid); err != nil {
		t.Fatal(err)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// TestPluginFails: what a plugin says is what is told, be it in JSON or not.
func TestPluginFails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, cases, want string }{
		{"an error", `ADD) echo '{"code":11,"msg":"no room","details":"all taken"}'; exit 1 ;;`,
			`plugin network "scripted": plugin type="scripted" failed (add): no room; all taken`},
		{"no JSON", "ADD) echo 'no lease' >&2; exit 3 ;;", "plugin scripted: its ADD failed with no error that can be read: " +
			"exit status 3: no lease"},
		{"nothing", "ADD) kill -9 $$ ;;", "plugin scripted: its ADD failed with no error that can be read: " +
			"signal: killed: it says nothing"},
		{"no address", `ADD) echo '{"cniVersion":"1.1.0"}' ;;`, "the result holds no address"},
		{"no result", "ADD) ;;", "unexpected end of JSON input"},
	} {
		m := scripted(t, tc.cases)
		if _, err := m.Setup(t.Context(), sandbox(t, "abc")); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", tc.name, err, tc.want)
		}
	}
}

// TestPluginStatus: a network that says that it cannot connect pods is not ready, in its
// own words; one that hangs is not either.
func TestPluginStatus(t *testing.T) {
	t.Parallel()
	m := scripted(t, `STATUS) echo '{"code":50,"msg":"the controller is away"}'; exit 1 ;;`)
	err := m.Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), `plugin network "scripted"`) ||
		!strings.Contains(err.Error(), "the controller is away") {
		t.Errorf("got %v", err)
	}
	writePlugin(t, m, "STATUS) sleep 600 ;;")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.Status(ctx); err == nil || !strings.Contains(err.Error(), "its STATUS did not answer in time") {
		t.Errorf("got %v", err)
	}
	writePlugin(t, m, "")
	if err := m.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDelIsRetried: a plugin whose DEL fails is asked again, and knows the namespace.
func TestDelIsRetried(t *testing.T) {
	t.Parallel()
	m := scripted(t, `DEL) echo '{"code":11,"msg":"try again"}'; exit 1 ;;`)
	s := sandbox(t, "abc")
	if _, err := m.Setup(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := m.Teardown(t.Context(), s); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("got %v", err)
	}
	writePlugin(t, m, "")
	for range 2 { // the second has nothing to do
		if err := m.Teardown(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Count(said(t, m, "calls"), "DEL abc"); got != 2 {
		t.Errorf("%d calls of DEL", got)
	}
}

// TestTidyUp: sandboxes that are gone get their DEL, and the plugins are told of those
// that are there: at the start, with a new configuration, never beside ADD and DEL.
func TestTidyUp(t *testing.T) {
	t.Parallel()
	m := scripted(t, "")
	live, gone := sandbox(t, "live"), sandbox(t, "gone")
	for _, s := range []podnet.Sandbox{live, gone} {
		if _, err := m.Setup(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{t: t, m: m, pods: map[string]podnet.Sandbox{"live": live}}
	f := &follower{Manager: m, sandboxes: n, timing: usual}

	m.third.verbs.RLock() // an ADD is under way
	if again := f.tidyUp(t.Context()); again <= 0 {
		t.Error("not tried again")
	}
	m.third.verbs.RUnlock()
	if got := said(t, m, "calls"); strings.Contains(got, "GC") {
		t.Errorf("calls %q", got)
	}
	for range 2 { // the second has nothing to do
		if again := f.tidyUp(t.Context()); again != 0 {
			t.Errorf("again after %s", again)
		}
	}
	calls := strings.Split(strings.TrimSpace(said(t, m, "calls")), "\n")
	for _, w := range []string{"ADD live", "ADD gone", "DEL gone", "GC"} {
		if i := slices.Index(calls, w); i < 0 || slices.Contains(calls[i+1:], w) {
			t.Errorf("%q is not once in %q", w, calls)
		}
	}
	var told struct {
		Valid []struct {
			ContainerID string `json:"containerID"`
			IfName      string `json:"ifname"`
		} `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal([]byte(said(t, m, "stdin-GC")), &told); err != nil || len(told.Valid) != 1 ||
		told.Valid[0].ContainerID != "live" || told.Valid[0].IfName != podnet.Interface {
		t.Errorf("valid attachments %+v, %v", told.Valid, err)
	}
}

// TestTidyUpEnds: a plugin that cannot collect is not asked for ever.
func TestTidyUpEnds(t *testing.T) {
	t.Parallel()
	m := scripted(t, `GC) echo '{"code":4,"msg":"unknown CNI_COMMAND: GC"}'; exit 1 ;;`)
	f := &follower{Manager: m, sandboxes: &node{t: t, m: m}, timing: usual}
	times := 0
	for f.tidyUp(t.Context()) > 0 {
		times++
	}
	if times != tidyTries {
		t.Errorf("%d tries", times)
	}
}
