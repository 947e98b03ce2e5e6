package service

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// world is a small cluster that changes at random.
type world struct {
	rnd      *rand.Rand
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	view     View
}

func (w *world) name() string { return fmt.Sprintf("s%d", w.rnd.IntN(8)) }

func (w *world) service() *corev1.Service {
	return web(func(s *corev1.Service) {
		s.Name = w.name()
		s.Spec.Selector = map[string]string{"not": "needed"}
		switch w.rnd.IntN(5) {
		case 0:
			s.Spec.ClusterIP = corev1.ClusterIPNone
		case 1:
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "x.example.com"
		case 2:
			s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 31000
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
		case 3:
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Labels = map[string]string{labelProxyName: "other"}
		}
	})
}

func (w *world) slice() *discoveryv1.EndpointSlice {
	var eps []string
	for range w.rnd.IntN(4) {
		state := []string{"ready", "notready", "ending", "dead"}[w.rnd.IntN(4)]
		eps = append(eps,
			fmt.Sprintf("10.1.0.%d@n%d %s hint=n%d/z%d", w.rnd.IntN(5), w.rnd.IntN(3), state,
				w.rnd.IntN(3), w.rnd.IntN(2)))
	}
	s := slice(fmt.Sprintf("e%d", w.rnd.IntN(16)), eps...)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: w.name()}
	switch w.rnd.IntN(10) {
	case 0:
		s.Labels = nil
	case 1, 2:
		s.Labels[corev1.IsHeadlessService] = "any"
	}
	return s
}

func (w *world) step(s *Source) {
	switch w.rnd.IntN(8) {
	case 0, 1:
		o := w.service()
		w.services[o.Name] = o
		s.putService(o.DeepCopy())
	case 2:
		o := w.service()
		delete(w.services, o.Name)
		s.dropService(keyOf(o))
	case 3, 4, 5:
		o := w.slice()
		w.slices[o.Name] = o
		s.putSlice(o.DeepCopy())
	case 6:
		o := w.slice()
		delete(w.slices, o.Name)
		s.dropSlice(keyOf(o))
	case 7:
		w.view.Down = map[string]bool{fmt.Sprintf("n%d", w.rnd.IntN(4)): true}
		s.SetDown(w.view.Down)
		w.view.Zone = fmt.Sprintf("z%d", w.rnd.IntN(2))
		s.SetZone(w.view.Zone)
	}
}

func (w *world) build() *Tables {
	in := Input{View: w.view}
	for _, o := range w.services {
		in.Services = append(in.Services, o)
	}
	for _, o := range w.slices {
		in.Slices = append(in.Slices, o)
	}
	slices.SortFunc(in.Slices,
		func(a, b *discoveryv1.EndpointSlice) int { return compareHeld(heldSlice{name: a.Name}, b.Name) })
	return Build(in)
}

func flat(t *Tables) map[Key]*Service {
	all := map[Key]*Service{}
	for k, s := range t.All() {
		all[k] = s
	}
	return all
}

// What follows change by change is what a full Build makes of the end state,
// and what the file gives back.
func TestRandomChangesEqualBuild(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	w := &world{rnd: rand.New(rand.NewPCG(seed, 0)), services: map[string]*corev1.Service{},
		slices: map[string]*discoveryv1.EndpointSlice{}, view: View{Node: "n1"}}
	file := filepath.Join(t.TempDir(), "services.json")
	s := NewSource(Config{Node: "n1", File: file})
	s.listed = [kinds]bool{true, true}
	for i := range 3000 {
		before := s.Tables()
		for range w.rnd.IntN(4) {
			w.step(s)
		}
		s.rebuild()
		got, want := flat(s.Tables()), flat(w.build())
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: got %v, want %v", i, got, want)
		}
		if s.Tables().Len() != len(want) {
			t.Fatalf("step %d: %d counted, %d there", i, s.Tables().Len(), len(want))
		}
		changed := map[Key]bool{}
		for _, k := range Changed(before, s.Tables()) {
			changed[k] = true
		}
		for k := range want {
			if changed[k] != (before.Get(k) != s.Tables().Get(k)) {
				t.Fatalf("step %d: %s: changed %v", i, k, changed[k])
			}
		}
		if i%50 != 0 {
			continue
		}
		if s.toSave() {
			s.save()
		}
		again := NewSource(Config{Node: "n1", File: file})
		again.restore()
		again.SetDown(w.view.Down)
		again.SetZone(w.view.Zone)
		again.rebuild()
		w.view.Recorded = true
		got, want = flat(again.Tables()), flat(w.build())
		w.view.Recorded = false
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: the file gives %v, want %v", i, got, want)
		}
	}
	if s.added == 0 {
		t.Error("the file was never added to")
	}
}

// A power cut may leave half a line.
func TestHalfALineInTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services.json")
	s := NewSource(Config{Node: "me", File: file})
	s.putService(web(nil))
	s.save()
	if err := appendFile(file, &state{GoneServices: []Key{{"ns", "web"}}}); err != nil {
		t.Fatal(err)
	}
	if st, err := readFile(file); err != nil || len(st.Services) != 0 {
		t.Fatalf("got %v, %v", st, err)
	}
	cut(t, file, 3)
	if st, err := readFile(file); err != nil || len(st.Services) != 1 {
		t.Errorf("after the cut: got %v, %v", st, err)
	}
}

func BenchmarkOneChange(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := NewSource(Config{Node: "me"})
			s.listed = [kinds]bool{true, true}
			for i := range n {
				o := web(func(s *corev1.Service) { s.Name = fmt.Sprint(i) })
				s.putService(o)
				s.putSlice(numbered(i, "10.1.0.1 ready", "10.1.0.2 ready"))
			}
			s.rebuild()
			i := 0
			for b.Loop() {
				before := s.Tables()
				s.putSlice(numbered(i%n, fmt.Sprintf("10.2.%d.%d ready", i/250%250, i%250), "10.1.0.2 ready"))
				s.rebuild()
				if len(Changed(before, s.Tables())) != 1 {
					b.Fatal("not one Service changed")
				}
				i++
			}
		})
	}
}

func numbered(i int, eps ...string) *discoveryv1.EndpointSlice {
	s := slice(fmt.Sprint(i), eps...)
	s.Labels[discoveryv1.LabelServiceName] = s.Name
	return s
}
