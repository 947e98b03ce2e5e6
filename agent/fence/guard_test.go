package fence

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/fence/keeper"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// node is a guard whose keeper is never there, and whose pods are processes.
type node struct {
	*Guard
	t         *testing.T
	groups    map[types.UID]string
	kept      error
	confirmed int
	refuse    error
	changed   chan struct{}
}

func newNode(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{t: t, groups: map[types.UID]string{}, changed: make(chan struct{}, 10)}
	n.Guard = &Guard{
		Directory: keeper.Directory{Path: dir},
		Target: func(p *corev1.Pod) keeper.Target {
			return keeper.Target{Groups: []string{filepath.Join(dir, "group-"+string(p.UID))}}
		},
		Keep: func(context.Context) error { return n.kept },
		Confirm: func(context.Context, *corev1.Pod) error {
			n.confirmed++
			return n.refuse
		},
		Changed: func() { n.changed <- struct{}{} },
		Log:     slog.New(slog.DiscardHandler),
	}
	if err := n.Open(); err != nil {
		t.Fatal(err)
	}
	return n
}

func stopPod(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", UID: uid,
		Annotations: map[string]string{PolicyAnnotation: string(Stop)}}}
}

// runs begins a process in the pod's group.
func (n *node) runs(pod *corev1.Pod) (ended <-chan struct{}) {
	n.t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	dir := n.Target(pod).Groups[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		n.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return done
}

func (n *node) answer(began time.Duration, annotations map[string]string) {
	now := metav1.NowMicro()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
	l.Spec.RenewTime = &now
	SetCovered(l, Length)
	n.Answered(n.t.Context(), began, l)
}

func (n *node) marked(have map[string]string) map[string]string {
	now := metav1.NowMicro()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: have}}
	l.Spec.RenewTime = &now
	n.Mark(l, false)
	return l.Annotations
}

func over(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

func TestAPodStartsWhenTheNodeHoldsAndTheAPIHasIt(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	p := stopPod("a")
	if err := n.Permit(t.Context(), p); !errors.Is(err, ErrNotHeld) {
		t.Fatalf("without a hold: %v", err)
	}
	if len(n.Renew()) != 1 {
		t.Error("nobody asks for one")
	}
	n.answer(n.Now(), nil)
	<-n.changed
	n.refuse = errors.New("another pod has its name")
	if err := n.Permit(t.Context(), p); !errors.Is(err, n.refuse) || !errors.Is(n.Check("a"), ErrNotHeld) {
		t.Fatalf("the API has it no more: %v, %v", err, n.Check("a"))
	}
	n.refuse = nil
	for range 2 {
		if err := n.Permit(t.Context(), p); err != nil || n.Check("a") != nil {
			t.Fatalf("%v, %v", err, n.Check("a"))
		}
	}
	if n.confirmed != 2 {
		t.Errorf("the API was asked %d times: once refused, once confirmed", n.confirmed)
	}
	n.kept = errors.New("no program")
	if err := n.Permit(t.Context(), p); !errors.Is(err, n.kept) {
		t.Errorf("without a keeper: %v", err)
	}
	if err := n.Permit(t.Context(), &corev1.Pod{}); err != nil || n.Check("b") != nil {
		t.Error("other pods need no hold")
	}
}

func TestAHoldCountsFromTheStartOfTheRequest(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	n.answer(n.Now()-Length, nil)
	if n.Held() {
		t.Error("the answer came when it was over")
	}
}

func TestANodeHoldsOnlyWhatOthersKnowOf(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	n.Answered(t.Context(), n.Now(), &coordinationv1.Lease{})
	if n.Held() {
		t.Error("a renewal before there were such pods says nothing of them")
	}
}

func TestAFenceStopsPodsBeforeThatIsSaid(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	p := stopPod("a")
	n.answer(n.Now(), nil)
	if err := n.Permit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ended := n.runs(p)
	raised := map[string]string{Raised: "10s-x"}
	if got := n.marked(map[string]string{Raised: "10s-x"}); got[Stopped] != "" {
		t.Errorf("nothing was stopped: %v", got)
	}
	n.answer(n.Now(), raised)
	<-ended
	if n.Held() || n.Check("a") == nil {
		t.Error("it holds on")
	}
	if got := n.marked(map[string]string{Raised: "10s-x"}); got[Stopped] != "10s-x" {
		t.Errorf("all is stopped: %v", got)
	}
	if got := n.marked(map[string]string{Raised: "10s-y", Stopped: "10s-x"}); got[Stopped] != "" {
		t.Errorf("not by this fence: %v", got)
	}
	if at, err := n.Directory.Deadline(); at != 0 || err != nil {
		t.Errorf("the keeper is told %s, %v", at, err)
	}
	// Lifted: a new term, in which the API is asked anew.
	n.answer(n.Now(), nil)
	if n.Check("a") == nil {
		t.Error("what was confirmed before the fence is no more")
	}
	if err := n.Permit(t.Context(), p); err != nil || n.confirmed != 2 {
		t.Errorf("%v, asked %d times", err, n.confirmed)
	}
}

func TestPodsEndWithTheHold(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	p := stopPod("a")
	n.answer(n.Now()-Length+time.Second, nil)
	if err := n.Permit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ended := n.runs(p)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.answer(n.Now()-Length+2*time.Second, nil) // in time
	<-ended
	if n.Held() {
		t.Error("stopped while it is held")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What an agent of before left is stopped before anything else when its time is over, and
// runs on otherwise.
func TestANewAgentGoesOnWithTheDeadline(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "boot")
	n := newNode(t, dir)
	p := stopPod("a")
	n.answer(n.Now(), nil)
	if err := n.Permit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ended := n.runs(p)
	next := newNode(t, dir)
	if over(ended) || !next.Held() || !next.Active() {
		t.Fatal("its time is not over")
	}
	if next.Check("a") == nil {
		t.Error("nothing was confirmed to this agent")
	}
	if err := next.Directory.SetDeadline(next.Now() - 1); err != nil {
		t.Fatal(err)
	}
	newNode(t, dir)
	<-ended
}

func TestAHoldThatEndedIsATermThatEnded(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	p := stopPod("a")
	n.answer(n.Now(), nil)
	if err := n.Permit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ended := n.runs(p)
	n.mu.Lock()
	n.deadline = n.Now() - 1 // nobody looked yet
	n.mu.Unlock()
	n.answer(n.Now(), nil)
	<-ended
	if n.Check("a") == nil {
		t.Error("it may start unconfirmed")
	}
}

func TestWithoutAKeeperNothingIsHeldOn(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	if err := n.Adopt(stopPod("a")); err != nil {
		t.Fatal(err)
	}
	n.kept = errors.New("no program")
	n.answer(n.Now(), nil)
	if n.Held() {
		t.Error("nobody would stop the pod if the agent could not")
	}
}

// What could not be stopped is tried again until it is, whether the API answers or not.
func TestAStopThatFailedIsTriedAgain(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	p := stopPod("a")
	n.answer(n.Now()-Length+time.Second/2, nil)
	if err := n.Permit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	other := stopPod("b") // of which nothing can be read
	unreadable := filepath.Join(n.Target(other).Groups[0], "cgroup.procs")
	if err := os.MkdirAll(unreadable, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := n.Adopt(other); err != nil {
		t.Fatal(err)
	}
	first := n.runs(p)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	<-first
	for failed := false; !failed; time.Sleep(time.Millisecond) {
		n.mu.Lock()
		failed = n.failed
		n.mu.Unlock()
	}
	if err := os.Remove(unreadable); err != nil {
		t.Fatal(err)
	}
	<-n.runs(other)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAGuardWithoutPodsSleeps(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	n.answer(n.Now(), nil)
	if at, ok := n.next(); ok {
		t.Errorf("it wakes in %s", at-n.Now())
	}
	if len(n.moved) != 1 {
		t.Error("a hold wakes it")
	}
	<-n.moved
	if err := n.Adopt(stopPod("a")); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.next(); !ok || len(n.moved) != 1 {
		t.Errorf("a pod does not wake it: %v", ok)
	}
	if err := n.Release("a"); err != nil {
		t.Fatal(err)
	}
	n.deadline = n.Now() // over, with nobody to tell
	if err := n.Adopt(stopPod("b")); err != nil {
		t.Fatal(err)
	}
	if at, ok := n.next(); ok || n.Held() {
		t.Errorf("it ends a hold of before in %s", at-n.Now())
	}
}

func TestPeriod(t *testing.T) {
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	if n.Period() != 0 || n.Adopt(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b"}}) != nil || n.Period() != 0 {
		t.Error("nothing is to be renewed for a node without such pods")
	}
	if err := n.Adopt(stopPod("a")); err != nil || n.Period() == 0 || n.Period()*2 > silenceOfLease {
		t.Errorf("%v, %s", err, n.Period())
	}
	if got := n.marked(nil); got[Covered] == "" {
		t.Error("it is not said that the pods are stopped in time")
	}
	if err := n.Release("a"); err != nil || n.Period() != 0 {
		t.Errorf("%v, %s", err, n.Period())
	}
	if got := n.marked(map[string]string{Covered: "10s x"}); got[Covered] != "" {
		t.Error("said of no pod")
	}
	if got := n.marked(map[string]string{Raised: "10s-x"}); got[Covered] == "" {
		t.Error("it is not said that the fence is heeded")
	}
}

// silenceOfLease is what the coordinator takes for a lost node (controller/fencing).
const silenceOfLease = Length * 6 / 10

func TestCovered(t *testing.T) {
	now := metav1.NowMicro()
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	if CoveredFor(l) != 0 {
		t.Error("nothing was said")
	}
	SetCovered(l, Length)
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	kept := &coordinationv1.Lease{}
	if err := json.Unmarshal(b, kept); err != nil {
		t.Fatal(err)
	}
	if CoveredFor(l) != Length || CoveredFor(kept) != Length {
		t.Error("said for this renewal")
	}
	Raise(l)
	if LengthOf(l.Annotations[Raised]) != Length || Wait(Length) <= Length+StopBound {
		t.Errorf("%v", l.Annotations)
	}
	later := metav1.NewMicroTime(now.Add(time.Second))
	l.Spec.RenewTime = &later // by an agent that knows nothing of it
	if CoveredFor(l) != 0 {
		t.Error("said for another renewal")
	}
	n := newNode(t, filepath.Join(t.TempDir(), "boot"))
	n.Mark(l, true)
	if LengthOf(l.Annotations[Raised]) != 0 {
		t.Error("nobody may act by the time of a fence that the agent made")
	}
}

func TestPolicyOf(t *testing.T) {
	for value, want := range map[string]Policy{"": Stay, "stop": Stop, "stop-if-replaced": StopIfReplaced, "STOP": Stay} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PolicyAnnotation: value}}}
		if got := PolicyOf(p); got != want {
			t.Errorf("%q: %s", value, got)
		}
		p.Annotations[corev1.MirrorPodAnnotationKey] = "x"
		if got := PolicyOf(p); got != Stay {
			t.Errorf("a mirror's %q: %s", value, got)
		}
	}
}
