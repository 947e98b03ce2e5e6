package quota

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func aPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func same(t *testing.T, what string, got, want corev1.ResourceList) {
	t.Helper()
	if !quotav1.Equals(got, want) {
		t.Errorf("%s takes %v, want %v", what, got, want)
	}
}

// What pods take (RQ-8, RQ-11, RQ-14, RQ-15, OVH-8).
func TestPodUsage(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want corev1.ResourceList
	}{
		"empty": {aPod(nil), list("count/pods", "1", "pods", "1")},
		"requests and limits": {aPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Requests: list("cpu", "1", "memory", "1Gi", "hugepages-2Mi", "4Mi", "example.com/gpu", "2"),
				Limits:   list("cpu", "2"),
			}
		}), list("count/pods", "1", "pods", "1", "cpu", "1", "requests.cpu", "1", "memory", "1Gi", "requests.memory",
			"1Gi", "limits.cpu", "2",
			"hugepages-2Mi", "4Mi", "requests.hugepages-2Mi", "4Mi", "requests.example.com/gpu", "2")},
		"overhead and init containers": {aPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = list("cpu", "1")
			p.Spec.InitContainers = []corev1.Container{
				{Name: "i", Resources: corev1.ResourceRequirements{Requests: list("cpu", "3")}}}
			p.Spec.Overhead = list("cpu", "250m")
		}), list("count/pods", "1", "pods", "1", "cpu", "3250m", "requests.cpu", "3250m")},
		"ended": {aPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = list("cpu", "1")
			p.Status.Phase = corev1.PodSucceeded
		}), list("count/pods", "1")},
		"overdue for deletion": {aPod(func(p *corev1.Pod) {
			seconds, at := int64(30), metav1.NewTime(now.Add(-31*time.Second))
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
		}), list("count/pods", "1")},
	} {
		same(t, name, podUsage(c.pod, now), c.want)
	}
}

// Containers name what a quota has to know of them (RQ-3, RQ-4, RQ-31).
func TestPodRequires(t *testing.T) {
	p := aPod(func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b"})
		p.Spec.Containers[0].Resources.Requests = list("cpu", "1")
	})
	names := []corev1.ResourceName{"requests.cpu", "pods", "limits.memory", "requests.ephemeral-storage"}
	err := podRequires(names, p)
	if err == nil || err.Error() != "must specify limits.memory for: b,c; requests.cpu for: b" {
		t.Errorf("%v", err)
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "1")}
	if err := podRequires(names, p); err != nil {
		t.Errorf("a pod with resources of its own: %v", err)
	}
}

// Scopes (RQ-17, RQ-18, RQ-19, RQ-28, PRI-28).
func TestScopes(t *testing.T) {
	seconds, class := int64(5), "fast"
	plain := aPod(nil)
	busy := aPod(func(p *corev1.Pod) {
		p.Spec.ActiveDeadlineSeconds, p.Spec.PriorityClassName = &seconds, "high"
		p.Spec.Containers[0].Resources.Limits = list("memory", "1")
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{PodAffinityTerm: corev1.PodAffinityTerm{Namespaces: []string{"x"}}}},
		}}
	})
	plainClaim := &corev1.PersistentVolumeClaim{}
	fastClaim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: &class}}
	exists := func(name corev1.ResourceQuotaScope) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: corev1.ScopeSelectorOpExists}
	}
	in := func(name corev1.ResourceQuotaScope, op corev1.ScopeSelectorOperator,
		values ...string) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: op, Values: values}
	}
	const priority, attributes = corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass
	pods, claims := newPods(nil), newClaims(nil)
	for i, c := range []struct {
		of           quotav1.Evaluator
		scope        corev1.ScopedResourceSelectorRequirement
		plain, other runtime.Object
		want         [2]bool
	}{
		{pods, exists(corev1.ResourceQuotaScopeTerminating), plain, busy, [2]bool{false, true}},
		{pods, exists(corev1.ResourceQuotaScopeNotTerminating), plain, busy, [2]bool{true, false}},
		{pods, exists(corev1.ResourceQuotaScopeBestEffort), plain, busy, [2]bool{true, false}},
		{pods, exists(corev1.ResourceQuotaScopeNotBestEffort), plain, busy, [2]bool{false, true}},
		{pods, exists(corev1.ResourceQuotaScopeCrossNamespacePodAffinity), plain, busy, [2]bool{false, true}},
		{pods, exists(priority), plain, busy, [2]bool{false, true}},
		{pods, in(priority, corev1.ScopeSelectorOpIn, "low", "high"), plain, busy, [2]bool{false, true}},
		{pods, in(priority, corev1.ScopeSelectorOpNotIn, "high"), plain, busy, [2]bool{true, false}},
		{pods, in(priority, corev1.ScopeSelectorOpDoesNotExist), plain, busy, [2]bool{true, false}},
		{pods, exists(attributes), plain, busy, [2]bool{false, false}},
		{claims, exists(attributes), plainClaim, fastClaim, [2]bool{false, true}},
		{claims, in(attributes, corev1.ScopeSelectorOpIn, "fast"), plainClaim, fastClaim, [2]bool{false, true}},
		{claims, exists(corev1.ResourceQuotaScopeTerminating), plainClaim, fastClaim, [2]bool{false, false}},
	} {
		for k, obj := range []runtime.Object{c.plain, c.other} {
			got, err := c.of.MatchingScopes(obj, []corev1.ScopedResourceSelectorRequirement{c.scope})
			if err != nil || (len(got) == 1) != c.want[k] {
				t.Errorf("%d: %v of object %d: %v %v", i, c.scope, k, got, err)
			}
		}
	}
	if _, err := pods.MatchingScopes(busy,
		[]corev1.ScopedResourceSelectorRequirement{in(priority, "Sometimes", "x")}); err == nil {
		t.Error("an operator that is none is taken")
	}
}

// What services and claims for storage take (RQ-10, RQ-15).
func TestOtherUsage(t *testing.T) {
	no := false
	ports := []corev1.ServicePort{{Port: 1}, {Port: 2, NodePort: 30001}}
	for name, c := range map[string]struct {
		spec corev1.ServiceSpec
		want corev1.ResourceList
	}{
		"ClusterIP": {corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports},
			list("services.loadbalancers", "0", "services.nodeports", "0")},
		"NodePort": {corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: ports},
			list("services.loadbalancers", "0", "services.nodeports", "2")},
		"balancer": {corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: ports},
			list("services.loadbalancers", "1", "services.nodeports", "2")},
		"balancer without ports": {
			corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: ports, AllocateLoadBalancerNodePorts: &no},
			list("services.loadbalancers", "1", "services.nodeports", "1")},
	} {
		same(t, name, serviceUsage(&corev1.Service{Spec: c.spec}),
			quotav1.Add(c.want, list("services", "1", "count/services", "1")))
	}
	gold := "gold"
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &gold, Resources: corev1.VolumeResourceRequirements{Requests: list("storage", "1Gi")},
	}}
	same(t, "a claim", claimUsage(claim),
		list("count/persistentvolumeclaims", "1", "persistentvolumeclaims", "1", "requests.storage", "1Gi",
			"gold.storageclass.storage.k8s.io/persistentvolumeclaims", "1",
			"gold.storageclass.storage.k8s.io/requests.storage", "1Gi"))
	grown := claim.DeepCopy()
	grown.Status.AllocatedResources = list("storage", "2Gi")
	if q := claimUsage(grown)["requests.storage"]; q.String() != "2Gi" || !ClaimChanged(claim, grown) {
		t.Errorf("a claim that holds more than it asks for: %s", q.String())
	}
}

// Which names are about which resource.
func TestNames(t *testing.T) {
	evaluators := Evaluators(nil, known(t, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/card")}}))
	about := func(name corev1.ResourceName) (out []string) {
		for _, e := range evaluators {
			if len(e.MatchingResources([]corev1.ResourceName{name})) > 0 {
				out = append(out, e.GroupResource().String())
			}
		}
		return out
	}
	for name, want := range map[corev1.ResourceName][]string{
		"pods": {"pods"}, "count/pods": {"pods"}, "cpu": {"pods"}, "limits.ephemeral-storage": {"pods"},
		"hugepages-2Mi":          {"pods"},
		"requests.hugepages-2Mi": {"pods"}, "requests.example.com/gpu": {"pods"}, "example.com/gpu": nil,
		"services.nodeports": {"services"}, "count/services": {"services"}, "requests.storage": {"persistentvolumeclaims"},
		"gold.storageclass.storage.k8s.io/requests.storage": {"persistentvolumeclaims"},
		"gold.storageclass.storage.k8s.io/other":            nil,
		"secrets":                                           {"secrets"}, "count/secrets": {"secrets"}, "configmaps": {"configmaps"},
		"count/deployments.apps":                          nil,
		"gpu.deviceclass.resource.k8s.io/devices":         {"resourceclaims.resource.k8s.io"},
		"requests.example.com/card":                       {"pods", "resourceclaims.resource.k8s.io"},
		"requests.deviceclass.resource.kubernetes.io/gpu": {"pods", "resourceclaims.resource.k8s.io"},
		"requests.deviceclass.resource.kubernetes.io/nic": {"pods"},
	} {
		if got := about(name); !slices.Equal(got, want) {
			t.Errorf("%s is about %v, want %v", name, got, want)
		}
	}
}
