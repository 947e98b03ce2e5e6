package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/cni/cidr"
)

// fakeRuntime answers as it is told, and has one image.
type fakeRuntime struct {
	conditions []*criv1.RuntimeCondition
	features   *criv1.RuntimeFeatures
	err        error
}

func (f *fakeRuntime) Status(context.Context, bool) (*criv1.StatusResponse, error) {
	return &criv1.StatusResponse{Status: &criv1.RuntimeStatus{Conditions: f.conditions}, Features: f.features}, f.err
}

func (f *fakeRuntime) ListImages(context.Context, *criv1.ImageFilter) ([]*criv1.Image, error) {
	return []*criv1.Image{{Id: "sha256:1", RepoTags: []string{"a:1"}, Size: 5}}, nil
}

// TestStrictGroups: a runtime that says nothing of it is one that cannot; while it does not
// answer, what was said before stays.
func TestStrictGroups(t *testing.T) {
	var n *corev1.Node
	for _, step := range []struct {
		runtime fakeRuntime
		want    bool
	}{
		{fakeRuntime{features: &criv1.RuntimeFeatures{SupplementalGroupsPolicy: true}}, true},
		{fakeRuntime{err: errors.New("gone")}, true},
		{fakeRuntime{}, false},
	} {
		d := &Describer{Static: Input{Name: "n"}, Runtime: &step.runtime, Images: &step.runtime,
			Pressure:    func() map[corev1.NodeConditionType]bool { return nil },
			Annotations: func() map[string]string { return nil }, Leaving: func() bool { return false }}
		n = Build(n, d.Describe(t.Context()))
		if f := n.Status.Features; f == nil || *f.SupplementalGroupsPolicy != step.want {
			t.Errorf("%+v: %+v", step.runtime, f)
		}
	}
}

// TestDescribe: why the node is not ready, by what its runtime says.
func TestDescribe(t *testing.T) {
	up := []*criv1.RuntimeCondition{{Type: criv1.RuntimeReady, Status: true}, {Type: criv1.NetworkReady, Status: true}}
	noNetwork := []*criv1.RuntimeCondition{up[0], {Type: criv1.NetworkReady, Reason: "NoCNI", Message: "no range"}}
	other := append(slices.Clone(up), &criv1.RuntimeCondition{Type: "Other"})
	for name, tt := range map[string]struct {
		runtime fakeRuntime
		leaving bool
		want    string
		images  int
	}{
		"all is well":     {runtime: fakeRuntime{conditions: up}, images: 1},
		"other condition": {runtime: fakeRuntime{conditions: other}, images: 1},
		"no network": {
			runtime: fakeRuntime{conditions: noNetwork},
			want:    "container runtime network not ready: NetworkReady=false reason:NoCNI message:no range",
			images:  1,
		},
		"silent":  {runtime: fakeRuntime{err: errors.New("gone")}, want: "container runtime is down: gone"},
		"leaving": {runtime: fakeRuntime{conditions: noNetwork}, leaving: true, want: "node is shutting down"},
	} {
		d := &Describer{
			Static:      Input{Name: "n", Runtime: "shoal://1"},
			Runtime:     &tt.runtime,
			Images:      &tt.runtime,
			MaxImages:   -1,
			Pressure:    func() map[corev1.NodeConditionType]bool { return map[corev1.NodeConditionType]bool{"P": true} },
			Annotations: func() map[string]string { return map[string]string{"a": "b"} },
			Leaving:     func() bool { return tt.leaving },
		}
		in := d.Describe(t.Context())
		if in.NotReady != tt.want || len(in.Images) != tt.images {
			t.Errorf("%s: %q, %d images", name, in.NotReady, len(in.Images))
		}
		if in.Name != "n" || in.Runtime != "shoal://1" || !in.Pressure["P"] ||
			in.Annotations["a"] != "b" || in.Now.IsZero() {
			t.Errorf("%s: %+v", name, in)
		}
	}
}

func TestReserved(t *testing.T) {
	got := Reserved(map[string]string{"cpu": "100m", "pid": "1k"}, map[string]string{"cpu": "400m"})
	if got.Cpu().String() != "500m" || len(got) != 2 {
		t.Errorf("got %v", got)
	}
}

func TestTaints(t *testing.T) {
	got := Taints([]string{"a=b:NoSchedule", "c:NoExecute", "wrong"})
	want := []corev1.Taint{{Key: "a", Value: "b", Effect: "NoSchedule"}, {Key: "c", Effect: "NoExecute"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// kept is a store of one node in memory.
type kept struct {
	node *corev1.Node
	err  error
}

func (k *kept) Get(string) (*corev1.Node, error)   { return k.node, k.err }
func (k *kept) Put(_ string, n *corev1.Node) error { k.node = n; return k.err }

func withRanges(list ...string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec:       corev1.NodeSpec{PodCIDRs: list},
		Status:     corev1.NodeStatus{Phase: corev1.NodeRunning},
	}
}

// TestMemory: the Node of before serves until the API is heard, without what it
// was then.
func TestMemory(t *testing.T) {
	store := &kept{}
	m := Remember(store, "n", slog.New(slog.DiscardHandler))
	if m.Node() != nil {
		t.Error("a node out of nothing")
	}
	m.Keep(withRanges("10.1.0.0/24"))
	if m.Node().Status.Phase != corev1.NodeRunning {
		t.Error("the newest version is not as the API has it")
	}
	after := Remember(store, "n", slog.New(slog.DiscardHandler)).Node()
	if after == nil || after.Spec.PodCIDRs[0] != "10.1.0.0/24" || after.Status.Phase != "" {
		t.Errorf("after a restart: %+v", after)
	}
}

// TestPodCIDRs is a script: what the Node has, what is set then, who is told.
func TestPodCIDRs(t *testing.T) {
	var set, told []string
	text := func(list cidr.Prefixes) string {
		var out []string
		for _, p := range list {
			out = append(out, p.String())
		}
		return strings.Join(out, " ")
	}
	c := &PodCIDRs{
		Set:     func(list cidr.Prefixes) error { set = append(set, text(list)); return nil },
		Changed: func(list cidr.Prefixes) { told = append(told, text(list)) },
		Log:     slog.New(slog.DiscardHandler),
	}
	if err := c.Restore(nil); err != nil || set != nil {
		t.Errorf("ranges out of nothing: %v, %v", set, err)
	}
	if err := c.Restore(withRanges("10.1.0.0/24")); err != nil {
		t.Error(err)
	}
	for _, n := range []*corev1.Node{withRanges("10.1.0.0/24"), withRanges(), withRanges("10.2.0.0/24", "fd00::/64")} {
		c.Heed(n)
	}
	if got := strings.Join(set, ","); got != "10.1.0.0/24,10.1.0.0/24,10.2.0.0/24 fd00::/64" {
		t.Errorf("set %s", got)
	}
	if got := strings.Join(told, ","); got != "10.2.0.0/24 fd00::/64" {
		t.Errorf("told %s", got)
	}
	c.Configured = cidr.Parse("10.9.0.0/24")
	if got := text(c.Of(withRanges("10.1.0.0/24"))); got != "10.9.0.0/24" {
		t.Errorf("the configuration does not count: %s", got)
	}
}

// TestConfiguredPodCIDRs: a Node that was not known before is told of, also when the
// ranges are the configuration's and the Node has none.
func TestConfiguredPodCIDRs(t *testing.T) {
	told := 0
	c := &PodCIDRs{
		Configured: cidr.Parse("10.9.0.0/24"),
		Set:        func(cidr.Prefixes) error { return nil },
		Changed:    func(cidr.Prefixes) { told++ },
		Log:        slog.New(slog.DiscardHandler),
	}
	if err := c.Restore(nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c.Heed(withRanges())
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// TestPodCIDRsFromTwoSides is for the race detector: the watch and the manager's own
// writes bring versions of the Node at the same time.
func TestPodCIDRsFromTwoSides(t *testing.T) {
	var told atomic.Int32
	c := &PodCIDRs{
		Set:     func(cidr.Prefixes) error { return nil },
		Changed: func(cidr.Prefixes) { told.Add(1) },
		Log:     slog.New(slog.DiscardHandler),
	}
	var sides sync.WaitGroup
	for range 2 {
		sides.Go(func() {
			for range 100 {
				c.Heed(withRanges("10.1.0.0/24"))
			}
		})
	}
	sides.Wait()
	if n := told.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
}
