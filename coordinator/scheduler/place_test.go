package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

func snapshot(t testing.TB, nodes []*corev1.Node, pods ...*corev1.Pod) *framework.Snapshot {
	t.Helper()
	c := newCache()
	for _, n := range nodes {
		c.setNode(n)
	}
	for i, p := range pods {
		p = p.DeepCopy()
		p.UID = types.UID(fmt.Sprint("on-", i))
		info, err := framework.NewPodInfo(p)
		if err != nil {
			t.Fatal(err)
		}
		c.setPod(info)
	}
	c.setNamespace("default", labels.Set{"team": "a"})
	c.setNamespace("other", labels.Set{"team": "b"})
	s := framework.NewSnapshot()
	c.refresh(s)
	return s
}

func declares(features ...string) nodeOpt {
	return func(n *corev1.Node) { n.Status.DeclaredFeatures = features }
}

func restartAll(p *corev1.Pod) {
	p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
		{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
}

func required(terms ...corev1.NodeSelectorTerm) podOpt {
	return podTerms(
		&corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}})
}

func exprs(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func near(terms ...corev1.PodAffinityTerm) podOpt {
	return podTerms(
		&corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}})
}

func apart(terms ...corev1.PodAffinityTerm) podOpt {
	return podTerms(
		&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}})
}

func tolerate(ts ...corev1.Toleration) podOpt { return func(p *corev1.Pod) { p.Spec.Tolerations = ts } }

func hostPort(port int32, ip string) podOpt {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: port, HostIP: ip, ContainerPort: 80}}
	}
}

func in(ns string) podOpt { return func(p *corev1.Pod) { p.Namespace = ns } }

func gpus(n string) nodeOpt {
	return func(node *corev1.Node) { node.Status.Allocatable["example.com/gpu"] = resource.MustParse(n) }
}

func initContainer(cpu string, sidecar bool) podOpt {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: fmt.Sprint("i", len(p.Spec.InitContainers)), Image: "img"}
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		if sidecar {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

// want is a node's name, or the reasons of the refusal.
func TestPlace(t *testing.T) {
	a, b := testNode("a", "1", "1Gi", zone("z1")), testNode("b", "1", "1Gi", zone("z2"))
	two := []*corev1.Node{a, b}
	otherTeam := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}
	tests := []struct {
		name  string
		nodes []*corev1.Node
		pods  []*corev1.Pod
		pod   *corev1.Pod
		want  string
	}{
		{"node name", two, nil, testPod("p", on("b")), "b"},
		{"node name unknown", two, nil, testPod("p", on("c")), "2 node(s) didn't match the requested node name"},
		{"cordoned NODE-17", []*corev1.Node{testNode("a", "1", "1Gi", cordon), b}, nil, testPod("p"), "b"},
		{"all cordoned", []*corev1.Node{testNode("a", "1", "1Gi", cordon)}, nil, testPod("p"), "1 node(s) were unschedulable"},
		{"cordon tolerated DS-13", []*corev1.Node{testNode("a", "1", "1Gi", cordon)}, nil,
			testPod("p",
				tolerate(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists})), "a"},
		{"feature that one node declares", []*corev1.Node{testNode("a", "1", "1Gi", declares("Other")),
			testNode("b", "1", "1Gi", declares("Other", "RestartAllContainersOnContainerExits"))}, nil,
			testPod("p", restartAll), "b"},
		{"feature that none declares", two, nil, testPod("p", restartAll), "2 node(s) didn't match Pod's required features"},
		{"taint", []*corev1.Node{testNode("a", "1", "1Gi", taint("k", corev1.TaintEffectNoExecute)), b},
			nil, testPod("p"), "b"},
		{"soft taint avoided",
			[]*corev1.Node{testNode("a", "1", "1Gi", taint("k", corev1.TaintEffectPreferNoSchedule)), b},
			nil, testPod("p"), "b"},
		{"node selector NODE-16", []*corev1.Node{testNode("a", "1", "1Gi", label("disk", "ssd")), b}, nil,
			testPod("p", selector("disk", "ssd")), "a"},
		{"node selector nowhere", two, nil, testPod("p", selector("disk", "ssd")), "2 node(s) didn't match Pod's node affinity/selector"},
		{"node affinity NotIn", two, nil,
			testPod("p", required(exprs(corev1.LabelTopologyZone, corev1.NodeSelectorOpNotIn, "z1"))), "b"},
		{"node affinity by name DS-9", two, nil,
			testPod("p",
				required(
					corev1.NodeSelectorTerm{
						MatchFields: []corev1.NodeSelectorRequirement{
							{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}})), "b"},
		{"node affinity by absent name", two, nil,
			testPod("p",
				required(
					corev1.NodeSelectorTerm{
						MatchFields: []corev1.NodeSelectorRequirement{
							{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"c"}}}})), "2 node(s) didn't satisfy plugin(s) [NodeAffinity]"},
		{"cpu NODE-50", two, []*corev1.Pod{testPod("x", requests("900m", "1Mi"), on("a"))},
			testPod("p", requests("200m", "1Mi")), "b"},
		{"cpu and memory", two[:1], nil, testPod("p", requests("2", "2Gi")), "1 Insufficient cpu, 1 Insufficient memory"},
		{"number of pods",
			[]*corev1.Node{
				testNode("a", "1", "1Gi",
					func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") })},
			[]*corev1.Pod{testPod("x", on("a"))}, testPod("p"), "1 Too many pods"},
		{"extended resource", []*corev1.Node{testNode("a", "1", "1Gi"), testNode("b", "1", "1Gi", gpus("1"))}, nil,
			testPod("p", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
			}), "b"},
		{"extended resource taken", []*corev1.Node{testNode("b", "1", "1Gi", gpus("1"))}, nil,
			testPod("p", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}
			}), "1 Insufficient example.com/gpu"},
		{"init container is a maximum INIT-15", two[:1], nil,
			testPod("p", requests("600m", "1Mi"), initContainer("900m", false)), "a"},
		{"sidecar adds up", two[:1], nil, testPod("p", requests("600m", "1Mi"), initContainer("500m", true)), "1 Insufficient cpu"},
		{"overhead RTC-13", two[:1], nil, testPod("p", requests("600m", "1Mi"), func(p *corev1.Pod) {
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
		}), "1 Insufficient cpu"},
		{"pod-level resources", two[:1], nil, testPod("p", func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
		}), "1 Insufficient cpu"},
		{"host port", two, []*corev1.Pod{testPod("x", hostPort(80, ""), on("a"))}, testPod("p", hostPort(80, "")), "b"},
		{"host port on another address", two[:1], []*corev1.Pod{testPod("x", hostPort(80, "10.0.0.1"), on("a"))},
			testPod("p", hostPort(80, "10.0.0.2")), "a"},
		{"host port taken", two[:1], []*corev1.Pod{testPod("x", hostPort(80, "10.0.0.1"), on("a"))},
			testPod("p", hostPort(80, "")), "1 node(s) didn't have free ports for the requested pod ports"},
		{"least allocated", two, []*corev1.Pod{testPod("x", requests("500m", "500Mi"), on("a"))},
			testPod("p", requests("100m", "100Mi")), "b"},
		{"image at hand", []*corev1.Node{testNode("a", "1", "1Gi"), testNode("b", "1", "1Gi", func(n *corev1.Node) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"img:latest"}, SizeBytes: 900 << 20}}
		})}, nil, testPod("p"), "b"},
		{"missing claim", two, nil, testPod("p", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{
				{Name: "v",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		}), `persistentvolumeclaim "data" not found`},

		{"near in the zone", two, []*corev1.Pod{testPod("x", app("db"), on("b"))},
			testPod("p", near(term(corev1.LabelTopologyZone, "db"))), "b"},
		{"near nobody", two, nil, testPod("p", near(term(corev1.LabelTopologyZone, "db"))), "2 node(s) didn't match pod affinity rules"},
		{"first of a group", two[:1], nil, testPod("p", near(term(corev1.LabelTopologyZone, "x"))), "a"},
		{"near across namespaces", two, []*corev1.Pod{testPod("x", app("db"), on("b"), in("other"))},
			testPod("p",
				near(corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname,
					LabelSelector: term("", "db").LabelSelector, NamespaceSelector: otherTeam})), "b"},
		{"not near across namespaces", two, []*corev1.Pod{testPod("x", app("db"), on("b"), in("other"))},
			testPod("p", near(term(corev1.LabelHostname, "db"))), "2 node(s) didn't match pod affinity rules"},
		{"apart", two, []*corev1.Pod{testPod("x", on("a"))}, testPod("p", apart(term(corev1.LabelHostname, "x"))), "b"},
		{"apart is full", two[:1], []*corev1.Pod{testPod("x", on("a"))},
			testPod("p", apart(term(corev1.LabelHostname, "x"))), "1 node(s) didn't match pod anti-affinity rules"},
		{"others keep apart", two, []*corev1.Pod{testPod("x", apart(term(corev1.LabelHostname, "y")), on("a"))},
			testPod("p", app("y")), "b"},
		{"others keep all apart", two[:1], []*corev1.Pod{testPod("x", apart(term(corev1.LabelHostname, "y")), on("a"))},
			testPod("p", app("y")), "1 node(s) didn't satisfy existing pods anti-affinity rules"},
		{"prefers company", two, []*corev1.Pod{testPod("x", app("db"), on("b"))},
			testPod("p",
				podTerms(
					&corev1.Affinity{
						PodAffinity: &corev1.PodAffinity{
							PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
								{Weight: 100, PodAffinityTerm: term(corev1.LabelTopologyZone, "db")}}}})), "b"},
		{"is preferred by others", two,
			[]*corev1.Pod{
				testPod("x", app("db"), on("b"),
					podTerms(
						&corev1.Affinity{
							PodAffinity: &corev1.PodAffinity{
								PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
									{Weight: 100, PodAffinityTerm: term(corev1.LabelTopologyZone, "y")}}}}))},
			testPod("p", app("y")), "b"},

		{"spread evens zones", two, []*corev1.Pod{testPod("x", on("a"))},
			testPod("p", constraints(constraint(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule))), "b"},
		{"spread without room", []*corev1.Node{a, testNode("b", "1", "1Gi", zone("z2"), cordon)},
			[]*corev1.Pod{testPod("x", on("a"))},
			testPod("p", constraints(constraint(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule))), "1 node(s) didn't match pod topology spread constraints, 1 node(s) were unschedulable"},
		{"spread needs the label", []*corev1.Node{testNode("a", "1", "1Gi")}, nil,
			testPod("p", constraints(constraint(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule))), "1 node(s) didn't match pod topology spread constraints (missing required label)"},
		{"spread leaves out nodes that do not match", two, []*corev1.Pod{testPod("x", on("a"))},
			testPod("p", selector(corev1.LabelTopologyZone, "z1"),
				constraints(constraint(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule))), "a"},
		{"spread minDomains", two[:1], []*corev1.Pod{testPod("x", on("a"))}, testPod("p", func(p *corev1.Pod) {
			c, n := constraint(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule), int32(2)
			c.MinDomains = &n
			constraints(c)(p)
		}), "1 node(s) didn't match pod topology spread constraints"},
		{"spread softly", two, []*corev1.Pod{testPod("x", on("a"))},
			testPod("p", constraints(constraint(corev1.LabelHostname, 1, corev1.ScheduleAnyway))), "b"},
		{"spread by default", two, []*corev1.Pod{testPod("x", on("a"), app("owned"))}, testPod("p", app("owned")), "b"},
	}
	p := defaultProfile(t)
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "-"), func(t *testing.T) {
			got, err := Place(p, snapshot(t, tt.nodes, tt.pods...), tt.pod)
			want := tt.want
			if err != nil {
				got, want = err.Error(), fmt.Sprintf("0/%d nodes are available: %s.", len(tt.nodes), tt.want)
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestClassesKeepUp changes a cluster at random and compares what a class knows
// from change to change with what a new one finds.
func TestClassesKeepUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	kinds := []podOpt{
		requests("100m", "50Mi"), app("owned"), near(term(corev1.LabelTopologyZone, "x")),
		apart(term(corev1.LabelHostname, "y")),
		constraints(constraint(corev1.LabelTopologyZone, 2, corev1.DoNotSchedule),
			constraint(corev1.LabelHostname, 1, corev1.ScheduleAnyway)),
		hostPort(80, ""), selector("disk", "ssd"),
		podTerms(
			&corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
						{Weight: 5, PodAffinityTerm: term(corev1.LabelHostname, "x")}}}}),
	}
	node := func(i int) *corev1.Node {
		n := testNode(fmt.Sprint("n", i), "4", "4Gi", zone(fmt.Sprint("z", rng.IntN(3))))
		if rng.IntN(3) == 0 {
			n.Labels["disk"] = "ssd"
		}
		if rng.IntN(6) == 0 {
			n.Spec.Taints = []corev1.Taint{
				{Key: "k",
					Effect: []corev1.TaintEffect{corev1.TaintEffectNoSchedule,
						corev1.TaintEffectPreferNoSchedule}[rng.IntN(2)]}}
		}
		return n
	}
	c, snap, profile := newCache(), framework.NewSnapshot(), defaultProfile(t)
	c.setNamespace("default", labels.Set{})
	kept := newPlacer(snap, newNominator())
	var placed []types.UID
	for step := range 3000 {
		switch r := rng.IntN(10); {
		case r == 0:
			c.setNode(node(rng.IntN(25)))
		case r == 1 && step%5 == 0:
			c.removeNode(fmt.Sprint("n", rng.IntN(25)))
		case r < 4 && len(placed) > 0:
			i := rng.IntN(len(placed))
			c.removePod(placed[i])
			placed = slices.Delete(placed, i, i+1)
		}
		c.refresh(snap)
		info, err := framework.NewPodInfo(testPod(fmt.Sprint("p", step), kinds[rng.IntN(len(kinds))], func(p *corev1.Pod) {
			if rng.IntN(4) == 0 && p.Labels["app"] == "x" {
				p.Labels["app"] = "y"
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := kept.place(t.Context(), profile, info)
		fresh := newPlacer(snap, newNominator())
		_, _, ferr := fresh.place(t.Context(), profile, info)
		if fmt.Sprint(err) != fmt.Sprint(ferr) {
			t.Fatalf("step %d: %v, afresh %v", step, err, ferr)
		}
		if err != nil {
			continue
		}
		if a, b := ranking(kept), ranking(fresh); a != b {
			t.Fatalf("step %d: ranking\n%s\nafresh\n%s", step, a, b)
		}
		c.assume(info, got)
		placed = append(placed, info.UID())
	}
}

// ranking prints the feasible nodes of the last cycle, and their scores up to a constant.
func ranking(p *placer) string {
	var low int64
	if len(p.slots) > 1 {
		low = slices.Min(p.totals)
	}
	var b strings.Builder
	for i, slot := range p.slots {
		fmt.Fprintf(&b, "%s", p.snap.Slots()[slot].Name())
		if len(p.slots) > 1 {
			fmt.Fprintf(&b, "=%d", p.totals[i]-low)
		}
		b.WriteByte(' ')
	}
	return b.String()
}
