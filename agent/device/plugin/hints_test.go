package plugin

import (
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/shoal-project/shoal/agent/device/topology"
)

func readHints(h topology.Hints) string {
	if len(h) == 0 {
		return "none"
	}
	var out []string
	for _, one := range h[dev] {
		out = append(out, one.Nodes.String()+map[bool]string{true: "+"}[one.Preferred])
	}
	return strings.Join(out, " ")
}

// Devices that say on which NUMA nodes they are give hints, and are chosen near to what is asked.
func TestHints(t *testing.T) {
	w := newWorld(t)
	w.start(boot)
	w.m.Nodes = topology.MaskOf(0, 1)
	d := w.plug(&program{}, dev, "a@0", "b@1", "c@1", "d")
	for spec, want := range map[string]string{
		"m=1": "0+ 1+ 0,1", "m=2": "1+ 0,1", "m=4": "", "m=5": "none", "other": "none",
	} {
		resource := dev
		if spec == "other" {
			resource, spec = "other.example/dev", "m=1"
		}
		p := podOf("p", resource, spec)
		if got := readHints(w.m.Hints(p, &p.Spec.Containers[0])); got != want {
			t.Errorf("%q: %q, want %q", spec, got, want)
		}
	}
	if got := readHints(w.m.PodHints(podOf("p", dev, "m=1", "n=1"))); got != "1+ 0,1" {
		t.Errorf("of a pod: %s", got)
	}
	p := podOf("p", dev, "m=1")
	if err := w.m.Allocate(t.Context(), p, &p.Spec.Containers[0], topology.MaskOf(1)); err != nil {
		t.Fatal(err)
	}
	w.called(d, "allocate b")
	if got := readHints(w.m.Hints(p, &p.Spec.Containers[0])); got != "none" {
		t.Errorf("of one that has its devices: %s", got)
	}
	// What is near goes first, then what does not say where it is.
	q := podOf("q", dev, "m=2")
	if err := w.m.Allocate(t.Context(), q, &q.Spec.Containers[0], topology.MaskOf(1)); err != nil {
		t.Fatal(err)
	}
	w.called(d, "allocate c d")
}

// Devices of which none says where it is have no hints.
func TestNoHints(t *testing.T) {
	w := newWorld(t)
	w.start(boot)
	w.m.Nodes = topology.MaskOf(0, 1)
	w.plug(&program{}, dev, "a", "b")
	p := podOf("p", dev, "m=1")
	if got := readHints(w.m.Hints(p, &p.Spec.Containers[0])); got != "none" {
		t.Error(got)
	}
}

// The plugin chooses among near devices, if there are enough; else it gets them in any case.
func TestPreferenceAmongNearDevices(t *testing.T) {
	w := newWorld(t)
	w.start(boot)
	w.m.Nodes = topology.MaskOf(0, 1)
	d := &program{prefer: func(r *pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
		list := append([]string(nil), r.MustIncludeDeviceIDs...)
		for i := len(r.AvailableDeviceIDs) - 1; len(list) < int(r.AllocationSize); i-- {
			list = append(list, r.AvailableDeviceIDs[i])
		}
		return list, nil
	}}
	d.options.GetPreferredAllocationAvailable = true
	w.plug(d, dev, "a@1", "b@1", "c@0", "d@0", "e@0")
	for _, c := range []struct{ name, spec, calls string }{
		{"p", "m=1", "prefer 1 of [a b] with [], allocate b"},
		{"q", "m=2", "prefer 2 of [a c d e] with [a], allocate a e"},
	} {
		p := podOf(c.name, dev, c.spec)
		if err := w.m.Allocate(t.Context(), p, &p.Spec.Containers[0], topology.MaskOf(1)); err != nil {
			t.Fatal(err)
		}
		w.called(d, c.calls)
	}
}
