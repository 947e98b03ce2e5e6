package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

func annotated(name string, annotations map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
}

// shown are tolerations in short: KEY=VALUE or KEY*, with :EFFECT.
func shown(list []corev1.Toleration) string {
	var out []string
	for _, t := range list {
		s := t.Key + "=" + t.Value
		if t.Operator == corev1.TolerationOpExists {
			s = t.Key + "*"
		}
		if t.Effect != "" {
			s += ":" + string(t.Effect)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func tolerating(memory string, list ...corev1.Toleration) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, Tolerations: list}}
	if memory != "" {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	return p
}

func TestPodTolerationRestriction(t *testing.T) {
	equal := func(key, value string) corev1.Toleration { return corev1.Toleration{Key: key, Value: value} }
	const config = `{apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration,
default: [{key: cluster, operator: Exists}],
whitelist: [{key: cluster, operator: Exists}, {key: node.kubernetes.io/memory-pressure, operator: Exists}]}`
	const pressure = "node.kubernetes.io/memory-pressure*:NoSchedule"
	defaults := func(text string) map[string]string { return map[string]string{defaultTolerations: text} }
	allows := func(text string) map[string]string { return map[string]string{allowedTolerations: text} }
	for name, tt := range map[string]struct {
		annotations map[string]string
		config      string
		pod         *corev1.Pod
		update      bool
		want, err   string
	}{
		"best effort":   {pod: tolerating("")},
		"asks for some": {pod: tolerating("1Mi"), want: pressure},
		"tolerates all": {pod: tolerating("1Mi", corev1.Toleration{Operator: corev1.TolerationOpExists}), want: "*"},
		"default": {
			annotations: defaults(`[{"key":"a","value":"1"},{"key":"b","operator":"Exists"}]`),
			pod:         tolerating("", equal("b", "2"), equal("c", "3")), want: "a=1 b* c=3"},
		"default of an update": {annotations: defaults(`[{"key":"a","value":"1"}]`),
			pod: tolerating("", equal("c", "3")), update: true, want: "c=3"},
		"allowed": {annotations: allows(`[{"key":"a","operator":"Exists"}]`),
			pod: tolerating("", equal("a", "1")), want: "a=1"},
		"not allowed": {annotations: allows(`[{"key":"a","operator":"Exists"}]`),
			pod: tolerating("", equal("b", "1")), err: "conflict with its namespace whitelist"},
		"not allowed by the value": {annotations: allows(`[{"key":"a","value":"2"}]`),
			pod: tolerating("", equal("a", "1")), err: "conflict with its namespace whitelist"},
		"not a list": {annotations: allows(`{}`),
			pod: tolerating("", equal("a", "1")), err: "is no list of tolerations"},
		"cluster":            {config: config, pod: tolerating("1Mi"), want: "cluster* " + pressure},
		"not of the cluster": {config: config, pod: tolerating("", equal("b", "1")), err: "conflict with its cluster whitelist"},
		"empty, not the cluster's": {config: config,
			annotations: map[string]string{defaultTolerations: "", allowedTolerations: ""},
			pod:         tolerating("", equal("b", "1")), want: "b=1"},
	} {
		t.Run(name, func(t *testing.T) {
			var built admission.Interface
			var err error
			if tt.config == "" {
				built, err = newTolerationRestriction(nil)
			} else {
				built, err = newTolerationRestriction(strings.NewReader(tt.config))
			}
			if err != nil {
				t.Fatal(err)
			}
			p, _ := connect(t, built, annotated("ns", tt.annotations))
			r := request{resource: "pods", namespace: "ns", name: "p", obj: tt.pod}
			if tt.update {
				r.operation, r.old = admission.Update, tt.pod.DeepCopy()
			}
			check(t, admit(p, r), tt.err)
			if got := shown(tt.pod.Spec.Tolerations); tt.err == "" && got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
	if _, err := newTolerationRestriction(strings.NewReader("kind: Other")); err == nil {
		t.Error("another configuration is taken")
	}
}

func TestCovers(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	noExecute := func(n *int64) corev1.Toleration {
		return corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: n}
	}
	for _, tt := range []struct {
		by, t corev1.Toleration
		want  bool
	}{
		{corev1.Toleration{Operator: corev1.TolerationOpExists}, noExecute(nil), true},
		{noExecute(seconds(5)), noExecute(seconds(4)), true},
		{noExecute(seconds(5)), noExecute(seconds(6)), false},
		{noExecute(seconds(5)), noExecute(nil), false},
		{noExecute(nil), noExecute(seconds(5)), true},
		{corev1.Toleration{Key: "a", Value: "1"}, corev1.Toleration{Key: "a", Operator: corev1.TolerationOpEqual,
			Value: "1", Effect: corev1.TaintEffectNoSchedule}, true},
		{corev1.Toleration{Key: "a", Value: "1"}, corev1.Toleration{Key: "a",
			Operator: corev1.TolerationOpExists}, false},
		{corev1.Toleration{Key: "a", Effect: corev1.TaintEffectNoSchedule}, corev1.Toleration{Key: "a"}, false},
	} {
		if got := covers(&tt.by, &tt.t); got != tt.want {
			t.Errorf("%+v by %+v: %v", tt.t, tt.by, got)
		}
	}
}

func TestExtendedResourceToleration(t *testing.T) {
	p := tolerating("", corev1.Toleration{Key: "example.com/gpu", Operator: corev1.TolerationOpExists})
	one := resource.MustParse("1")
	asks := func(names ...corev1.ResourceName) corev1.ResourceRequirements {
		list := corev1.ResourceList{}
		for _, name := range names {
			list[name] = one
		}
		return corev1.ResourceRequirements{Requests: list}
	}
	p.Spec.Containers[0].Resources = asks("example.com/gpu", "example.com/fpga", "cpu")
	p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: asks("example.com/nic", "hugepages-2Mi")}}
	for range 2 { // the second time there is nothing to add
		check(t, admitPod(newExtendedToleration(), p), "")
		if got := shown(p.Spec.Tolerations); got != "example.com/gpu* example.com/fpga* example.com/nic*" {
			t.Error(got)
		}
	}
}

func TestHardAntiAffinity(t *testing.T) {
	p := tolerating("")
	check(t, admitPod(newHardAntiAffinity(), p), "")
	terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}}
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	check(t, admitPod(newHardAntiAffinity(), p), "")
	terms[0].TopologyKey = corev1.LabelTopologyZone
	check(t, admitPod(newHardAntiAffinity(), p), "only key kubernetes.io/hostname is allowed")
}

func TestPodNodeSelector(t *testing.T) {
	const config = "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: pool=any, strict: 'pool=any,disk=ssd'}"
	for name, tt := range map[string]struct {
		namespace   string
		annotations map[string]string
		selects     map[string]string
		want, err   string
	}{
		"default":        {"ns", nil, map[string]string{"disk": "ssd"}, "disk=ssd,pool=any", ""},
		"its own":        {"ns", map[string]string{nodeSelector: "pool=b,zone=z"}, nil, "pool=b,zone=z", ""},
		"none":           {"ns", map[string]string{nodeSelector: ""}, nil, "", ""},
		"others":         {"ns", map[string]string{nodeSelector: "pool=b"}, map[string]string{"pool": "c"}, "", "conflicts with"},
		"allowed":        {"strict", nil, map[string]string{"disk": "ssd"}, "disk=ssd,pool=any", ""},
		"not allowed":    {"strict", nil, map[string]string{"zone": "z"}, "", "conflict with its namespace whitelist"},
		"cannot be read": {"ns", map[string]string{nodeSelector: "pool"}, nil, "", "annotation"},
	} {
		t.Run(name, func(t *testing.T) {
			built, err := newPodNodeSelector(strings.NewReader(config))
			if err != nil {
				t.Fatal(err)
			}
			p, _ := connect(t, built, annotated(tt.namespace, tt.annotations))
			pod := tolerating("")
			pod.Spec.NodeSelector = tt.selects
			check(t, admit(p, request{resource: "pods", namespace: tt.namespace, name: "p", obj: pod}), tt.err)
			got := metav1.FormatLabelSelector(metav1.SetAsLabelSelector(pod.Spec.NodeSelector))
			if tt.want == "" {
				tt.want = "<none>"
			}
			if tt.err == "" && got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
	if _, err := newPodNodeSelector(strings.NewReader("podNodeSelectorPluginConfig: {a: b c}")); err == nil {
		t.Error("no selector is taken")
	}
}
