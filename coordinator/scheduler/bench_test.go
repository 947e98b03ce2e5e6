package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/coordinator/scheduler/plugins"
)

// BenchmarkSchedule is the scheduling loop without the API: refresh, place and
// assume, with a steady number of pods of the kind on the nodes.
func BenchmarkSchedule(b *testing.B) {
	kinds := []struct {
		name  string
		alive int // share of the nodes, in percent, that as many pods as stay alive make up
		opt   func(i int) podOpt
	}{
		{"basic", 500, func(int) podOpt { return func(*corev1.Pod) {} }},
		{"unique", 500, func(i int) podOpt { return requests("100m", fmt.Sprint(100<<20+i)) }},
		{"owned", 500, func(int) podOpt { return app("owned") }},
		{"affinity", 500, func(int) podOpt {
			return podTerms(
				&corev1.Affinity{
					PodAffinity: &corev1.PodAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
							term(corev1.LabelTopologyZone, "x")}}})
		}},
		{"anti-affinity", 50, func(int) podOpt {
			return podTerms(
				&corev1.Affinity{
					PodAntiAffinity: &corev1.PodAntiAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
							term(corev1.LabelHostname, "x")}}})
		}},
		{"preferred-affinity", 500, func(int) podOpt {
			return podTerms(
				&corev1.Affinity{
					PodAffinity: &corev1.PodAffinity{
						PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
							{Weight: 10, PodAffinityTerm: term(corev1.LabelTopologyZone, "x")}}}})
		}},
		{"spread", 500, func(int) podOpt {
			return constraints(constraint(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule),
				constraint(corev1.LabelHostname, 1, corev1.ScheduleAnyway))
		}},
	}
	for _, nodes := range []int{1000, 5000} {
		for _, k := range kinds {
			b.Run(fmt.Sprintf("%s-%d", k.name, nodes),
				func(b *testing.B) { benchSchedule(b, nodes, nodes*k.alive/100, k.opt) })
		}
	}
}

func benchSchedule(b *testing.B, nodes, alive int, opt func(i int) podOpt) {
	c := newCache()
	for i := range nodes {
		c.setNode(testNode(fmt.Sprint("node-", i), "32", "128Gi", zone(fmt.Sprint("z", i%10)), func(n *corev1.Node) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"img:latest"}, SizeBytes: 1 << 28}}
		}))
	}
	profile := defaultProfile(b)
	snap := framework.NewSnapshot()
	p := newPlacer(snap, newNominator())
	var placed []types.UID
	one := func(i int) {
		pod := testPod(fmt.Sprint("p", i), requests("100m", "100Mi"), opt(i))
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			b.Fatal(err)
		}
		c.refresh(snap)
		node, _, err := p.place(b.Context(), profile, info)
		if err != nil {
			b.Fatal(err)
		}
		c.assume(info, node)
		if placed = append(placed, pod.UID); len(placed) > alive {
			c.removePod(placed[0])
			placed = placed[1:]
		}
	}
	for i := range alive {
		if i%7 == 6 || alive < 2000 || i < 1000 {
			one(i)
		}
	}
	b.ResetTimer()
	b.ReportAllocs()
	for i := range b.N {
		one(alive + i)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}

func defaultProfile(t testing.TB) *Profile {
	p, err := DefaultProfile(&plugins.Deps{OwnerSelector: func(pod *corev1.Pod) labels.Selector {
		if pod.Labels["app"] == "owned" {
			return labels.SelectorFromSet(labels.Set{"app": "owned"})
		}
		return labels.NewSelector()
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func podTerms(a *corev1.Affinity) podOpt { return func(p *corev1.Pod) { p.Spec.Affinity = a } }

func term(key, app string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: key,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
}

func constraints(cs ...corev1.TopologySpreadConstraint) podOpt {
	return func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = cs }
}

func constraint(key string, skew int32, w corev1.UnsatisfiableConstraintAction) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: w,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}
}
