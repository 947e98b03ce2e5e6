package policy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// coordinator tells what a test has it tell, to one engine at a time.
type coordinator struct {
	mu    sync.Mutex
	lines []*policyfeed.Update // all that was told
	out   *io.PipeWriter
}

// feed is a Config's: all that was told, and what will be.
func (c *coordinator) feed(ctx context.Context) (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
	c.out = w
	list := c.lines
	go func() {
		for _, u := range list {
			_ = json.NewEncoder(w).Encode(u) // fails when the test ends
		}
	}()
	return r, nil
}

func silent(ctx context.Context) (io.ReadCloser, error) { return (&coordinator{}).feed(ctx) }

func policyOf(name string, spec networkingv1.NetworkPolicySpec) policyfeed.Policy {
	return policyfeed.Policy{Key: Key{Namespace: "a", Name: name}, Spec: spec}
}

// denied isolates the pods of app web.
var denied = policyOf("deny", networkingv1.NetworkPolicySpec{
	PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}})

func ownPod(name string, last byte, labels map[string]string) *policyfeed.Pod {
	return &policyfeed.Pod{Key: Key{Namespace: "a", Name: name}, Labels: labels, Node: "here",
		Addrs: both(netip.AddrFrom4([4]byte{10, 244, 7, last}))}
}

var web = map[string]string{"app": "web"}

const testTable = "engine"

// run starts an engine; stop ends it.
func run(t *testing.T, c Config) (e *Engine, stop func()) {
	t.Helper()
	c.Table, c.Node, c.Log = testTable, "here", slog.New(slog.NewTextHandler(t.Output(), nil))
	e = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		if err := Cleanup(testTable); err != nil {
			t.Error(err)
		}
	})
	return e, stop
}

func (e *Engine) admits(t *testing.T, p *policyfeed.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := e.Admit(ctx, uidOf(p), p); err != nil {
		t.Fatal(err)
	}
}

func uidOf(p *policyfeed.Pod) types.UID { return types.UID("uid-" + p.Name) }

// isolated are the addresses that the kernel's tables isolate, of both families; nil
// without tables.
func isolated(t *testing.T) (out map[string]bool) {
	t.Helper()
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, f := range families {
		table := nft.Table{Family: f, Name: testTable}
		if !conn.Intact(table) {
			continue
		}
		elems, err := conn.Elements(table, &nft.Set{Name: "self", Key: f.AddrPair().Type()})
		if err != nil && !conn.Intact(table) {
			continue // it went just now
		}
		if err != nil {
			t.Fatal(err)
		}
		for key := range elems {
			a, ok := netip.AddrFromSlice([]byte(key[:len(key)/2]))
			if !ok {
				t.Fatalf("element %q", key)
			}
			if out == nil {
				out = map[string]bool{}
			}
			out[a.String()] = true
		}
	}
	return out
}

func isIsolated(t *testing.T, want bool, pods ...*policyfeed.Pod) {
	t.Helper()
	got := isolated(t)
	for _, p := range pods {
		for _, a := range p.Addrs {
			if got[a.String()] != want {
				t.Errorf("%s at %s is isolated: %v, want %v", p.Name, a, got[a.String()], want)
			}
		}
	}
}

// eventually waits for what Run does by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what + ": not within a minute")
		}
	}
}

func TestWithoutPolicies(t *testing.T) {
	c := &coordinator{lines: []*policyfeed.Update{{Reset: true}}}
	e, stop := run(t, Config{Feed: c.feed})
	e.admits(t, ownPod("one", 2, web))
	e.admits(t, ownPod("two", 3, nil))
	stop()
	if got := isolated(t); got != nil {
		t.Errorf("tables with %v", got)
	}
	if e.kernel.conn != nil {
		t.Error("a connection to the kernel is open")
	}
}

// A pod is isolated when Admit returns, whatever is told first.
func TestAdmit(t *testing.T) {
	c := &coordinator{}
	e, _ := run(t, Config{Feed: c.feed})
	pod, other := ownPod("web", 2, web), ownPod("other", 3, nil)
	admitted := make(chan error)
	go func() { admitted <- e.Admit(t.Context(), uidOf(pod), pod) }()
	e.take([]*policyfeed.Update{{Reset: true, Policies: []policyfeed.Policy{denied}}}, heard)
	if err := <-admitted; err != nil {
		t.Fatal(err)
	}
	isIsolated(t, true, pod)
	e.admits(t, other)
	isIsolated(t, false, other)
	isIsolated(t, true, pod)

	// Labels and ends are followed.
	e.Relabel(uidOf(other), other.Key, web)
	eventually(t, "the other is isolated", func() bool { return len(isolated(t)) == 4 })
	e.Forget(uidOf(pod), pod.Key)
	eventually(t, "the pod's end", func() bool { return len(isolated(t)) == 2 })
	e.Relabel(uidOf(other), other.Key, nil)
	eventually(t, "no table is left", func() bool { return isolated(t) == nil })
	e.Relabel(uidOf(pod), pod.Key, web) // is not here any more
	e.admits(t, ownPod("third", 4, nil))
	if got := isolated(t); got != nil {
		t.Errorf("isolated: %v", got)
	}
}

// After the agent's end pods stay isolated, and the next agent knows the same without
// a coordinator, also after a reboot.
func TestWithoutCoordinator(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	pod, late := ownPod("web", 2, web), ownPod("late", 3, web)
	c := &coordinator{lines: []*policyfeed.Update{{Reset: true, Policies: []policyfeed.Policy{denied}}}}
	e, stop := run(t, Config{Feed: c.feed, File: file})
	e.admits(t, pod)
	stop()
	isIsolated(t, true, pod)

	cutOff := func() bool { return true }
	e, stop = run(t, Config{Feed: silent, File: file, CutOff: cutOff})
	e.Adopt(uidOf(pod), pod)
	e.admits(t, late)
	isIsolated(t, true, pod, late)
	stop()

	if err := Cleanup(testTable); err != nil { // a reboot
		t.Fatal(err)
	}
	e, stop = run(t, Config{Feed: silent, File: file, CutOff: cutOff})
	e.admits(t, pod)
	isIsolated(t, true, pod)
	stop()

	// A coordinator that is heard again has the last word.
	c = &coordinator{lines: []*policyfeed.Update{{Reset: true}}}
	e, _ = run(t, Config{Feed: c.feed, File: file})
	e.Adopt(uidOf(pod), pod)
	eventually(t, "the policy is gone", func() bool { return isolated(t) == nil })
}

// Coordinators of an earlier version keep no pod from running.
func TestOldCoordinator(t *testing.T) {
	e, _ := run(t, Config{Feed: func(context.Context) (io.ReadCloser, error) { return nil, ErrNoFeed }})
	e.admits(t, ownPod("one", 2, web))
	e, _ = run(t, Config{}) // none at all
	e.admits(t, ownPod("one", 2, web))
}

// What nobody told of keeps a pod from running, and Admit says so.
func TestAdmitFails(t *testing.T) {
	e, _ := run(t, Config{Feed: silent})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	pod := ownPod("web", 2, web)
	if err := e.Admit(ctx, uidOf(pod), pod); !errors.Is(err, context.Canceled) {
		t.Errorf("admitted: %v", err)
	}
}

// Somebody flushed the whole ruleset.
func TestLostTables(t *testing.T) {
	c := newCompiler(testTable, slog.New(slog.DiscardHandler))
	d := newDelta()
	pod := ownPod("web", 2, web)
	d.pods[PodID{pod.Key, "uid"}] = pod
	d.policies[denied.Key] = &denied
	c.change(d)
	var k kernel
	defer k.close()
	if err := k.apply(c); err != nil {
		t.Fatal(err)
	}
	if k.lost(c) {
		t.Error("tables that are there are lost")
	}
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !k.lost(c) {
		t.Error("it did not show")
	}
	if err := k.apply(c); err != nil {
		t.Fatal(err)
	}
	isIsolated(t, true, pod)
	if err := Cleanup(testTable); err != nil {
		t.Fatal(err)
	}
}

// The file grows by what changes, and is written anew when it is mostly that; what a
// power cut leaves of a line is as if it had not been written.
func TestFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	c := &coordinator{lines: []*policyfeed.Update{{Reset: true, Policies: []policyfeed.Policy{denied}}}}
	e, stop := run(t, Config{Feed: c.feed, File: file})
	e.admits(t, ownPod("web", 2, web))
	second := policyOf("second", denied.Spec)
	e.take([]*policyfeed.Update{{Policies: []policyfeed.Policy{second}}}, heard)
	e.take([]*policyfeed.Update{{Namespaces: []policyfeed.Namespace{{Name: "a", Labels: web}}}}, heard)
	stop()
	known := func(data []byte) (*World, error) {
		at := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(at, data, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := readFile(at)
		w, d := NewWorld(), newDelta()
		for _, u := range list {
			d.add(w, u, "here")
		}
		c := newCompiler(testTable, slog.New(slog.DiscardHandler))
		c.change(d)
		return c.world, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := known(data)
	if err != nil || len(w.Policies) != 2 || w.Namespaces["a"]["app"] != "web" || len(w.Pods) != 0 {
		t.Errorf("%v: %+v\n%s", err, w, data)
	}
	if cut, err := known(append(data, `{"gonePolicies":[{"namesp`...)); err != nil || len(cut.Policies) != 2 {
		t.Errorf("cut: %v: %+v", err, cut)
	}
	open, err := known(append(data, `{"more":true,"goneNamespaces":["a"]}`+"\n"...))
	if err != nil || len(open.Namespaces) != 1 {
		t.Errorf("without the end of a group: %v: %+v", err, open)
	}
	for _, bad := range []string{"", "x\n{}\n", strings.Repeat("{", 10)} {
		if w, err := known([]byte(bad)); err == nil {
			t.Errorf("%q was taken as %+v", bad, w)
		}
	}
	// Many changes do not add up.
	e, stop = run(t, Config{Feed: c.feed, File: file})
	e.admits(t, ownPod("web", 2, web))
	for range 3 * appendMost {
		e.take([]*policyfeed.Update{{Namespaces: []policyfeed.Namespace{{Name: "a", Labels: web}}}}, heard)
	}
	stop()
	if info, err := os.Stat(file); err != nil || info.Size() > 10*int64(len(data)) {
		t.Errorf("%v: %d bytes", err, info.Size())
	}
}
