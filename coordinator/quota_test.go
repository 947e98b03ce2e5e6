package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/dynamic"

	"github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
)

// fullAdmission is the coordinator's own chain.
func fullAdmission(s *apiserver.Server) []apiadmission.Interface {
	plugins, err := admission.Chain(admission.Config{
		Client: s.Client(), Informers: s.Informers(), Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
	})
	if err != nil {
		panic(err)
	}
	return plugins
}

// Quotas are counted by the controller and charged by admission.
func TestQuota(t *testing.T) {
	c := newRigWith(t, false, fullAdmission)
	t.Run("Pods", c.testPodQuota)
	t.Run("Counts", c.testCountQuota)
	t.Run("CustomResource", c.testCustomQuota)
	t.Run("Status", c.testQuotaStatus)
	t.Run("ServiceCIDR", c.testServiceCIDR)
	t.Run("Repair", c.testAddressRepair)
}

func (c *rig) quota(t *testing.T, ns, name string, spec corev1.ResourceQuotaSpec) {
	t.Helper()
	_, err := c.client.CoreV1().ResourceQuotas(ns).Create(t.Context(),
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// used waits until a quota says that so much is used, written NAME=AMOUNT.
func (c *rig) used(t *testing.T, ns, name string, want ...string) {
	t.Helper()
	within(t, fmt.Sprintf("%s uses %v", name, want), func() error {
		q, err := c.client.CoreV1().ResourceQuotas(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, w := range want {
			resourceName, amount, _ := strings.Cut(w, "=")
			have, ok := q.Status.Used[corev1.ResourceName(resourceName)]
			if wanted := resource.MustParse(amount); !ok || have.Cmp(wanted) != 0 {
				return fmt.Errorf("used %v", q.Status.Used)
			}
		}
		// Admission reads what the informers have: until the status is there, the
		// quota limits nothing.
		known, err := c.deps.Informers.Core().V1().ResourceQuotas().Lister().ResourceQuotas(ns).Get(name)
		if err != nil {
			return err
		}
		if known.ResourceVersion != q.ResourceVersion {
			return fmt.Errorf("informed of %s, not of %s", known.ResourceVersion, q.ResourceVersion)
		}
		return nil
	})
}

func hard(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, p := range pairs {
		name, amount, _ := strings.Cut(p, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return list
}

func (c *rig) podOf(t *testing.T, ns, name string, requests corev1.ResourceList) error {
	t.Helper()
	spec := template(name, "one").Spec
	spec.Containers[0].Resources.Requests = requests
	var err error
	// The namespace's service account comes soon after it.
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		_, err = c.client.CoreV1().Pods(ns).Create(t.Context(),
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "serviceaccount") {
			return err
		}
	}
	return err
}

func (c *rig) testPodQuota(t *testing.T) {
	ns := c.namespace(t, "pod-quota")
	c.quota(t, ns, "q", corev1.ResourceQuotaSpec{Hard: hard("pods=1", "requests.cpu=1")})
	c.quota(t, ns,
		"ended",
		corev1.ResourceQuotaSpec{Hard: hard("pods=5"),
			Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}})
	c.used(t, ns, "q", "pods=0", "requests.cpu=0")
	c.used(t, ns, "ended", "pods=0")
	if err := c.podOf(t, ns, "none", nil); err == nil || !strings.Contains(err.Error(), `pods "none" is forbidden: failed quota: q: must specify requests.cpu for: c`) {
		t.Errorf("a pod without requests: %v", err)
	}
	if err := c.podOf(t, ns, "first", hard("cpu=100m")); err != nil {
		t.Fatal(err)
	}
	c.used(t, ns, "q", "pods=1", "requests.cpu=100m")
	err := c.podOf(t, ns, "second", hard("cpu=100m"))
	if err == nil || !strings.Contains(err.Error(), `pods "second" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1`) {
		t.Errorf("one pod too many: %v", err)
	}
	zero := int64(0)
	if err := c.client.CoreV1().Pods(ns).Delete(t.Context(),
		"first", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	c.used(t, ns, "q", "pods=0", "requests.cpu=0")
	if err := c.podOf(t, ns, "third", hard("cpu=1")); err != nil {
		t.Error(err)
	}
	patch := []byte(`{"spec":{"hard":{"pods":"3","requests.cpu":"3","count/pods":"3"}}}`)
	if _, err := c.client.CoreV1().ResourceQuotas(ns).Patch(t.Context(), "q", types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.used(t, ns, "q", "pods=1", "requests.cpu=1", "count/pods=1")
}

func (c *rig) testCountQuota(t *testing.T) {
	ns := c.namespace(t, "count-quota")
	c.quota(t, ns,
		"q", corev1.ResourceQuotaSpec{
			Hard: hard("count/deployments.apps=1", "services=3", "services.nodeports=1", "secrets=2", "count/events=1")})
	c.used(t, ns, "q", "count/deployments.apps=0", "services=0", "services.nodeports=0", "secrets=0")
	d := c.deploy(t, ns, 0, appsv1.RollingUpdateDeploymentStrategyType)
	c.used(t, ns, "q", "count/deployments.apps=1")
	d = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: d.Spec}
	_, err := c.client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1, limited: count/deployments.apps=1") {
		t.Errorf("one deployment too many: %v", err)
	}
	service := func(name string, typ corev1.ServiceType) error {
		_, err := c.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: typ, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	}
	if err := errors.Join(service("a", corev1.ServiceTypeClusterIP),
		service("b", corev1.ServiceTypeNodePort)); err != nil {
		t.Fatal(err)
	}
	c.used(t, ns, "q", "services=2", "services.nodeports=1")
	if err := service("c", corev1.ServiceTypeNodePort); err == nil || !strings.Contains(err.Error(), "exceeded quota: q, requested: services.nodeports=1") {
		t.Errorf("one node port too many: %v", err)
	}
	if err := c.client.CoreV1().Services(ns).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.used(t, ns, "q", "services=1", "services.nodeports=0")
}

func (c *rig) testCustomQuota(t *testing.T) {
	ns := c.namespace(t, "custom-quota")
	c.quota(t, ns, "q", corev1.ResourceQuotaSpec{Hard: hard("count/fish.sea.example=1")})
	d, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "fish.sea.example"},
		"spec": map[string]any{
			"group": "sea.example", "scope": "Namespaced",
			"names": map[string]any{"plural": "fish", "singular": "fish", "kind": "Fish", "listKind": "FishList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
	if _, err := d.Resource(
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"}).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fish := d.Resource(schema.GroupVersionResource{Group: "sea.example", Version: "v1", Resource: "fish"}).Namespace(ns)
	within(t, "the resource is served", func() error {
		_, err := fish.List(t.Context(), metav1.ListOptions{})
		return err
	})
	// A new quota looks at once; one that was there looks again after a while.
	c.quota(t, ns, "again", corev1.ResourceQuotaSpec{Hard: hard("count/fish.sea.example=1")})
	c.used(t, ns, "again", "count/fish.sea.example=0")
	one := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "sea.example/v1", "kind": "Fish", "metadata": map[string]any{"name": "one"}}}
	within(t, "a fish", func() error {
		_, err := fish.Create(t.Context(), one, metav1.CreateOptions{})
		return err
	})
	c.used(t, ns, "again", "count/fish.sea.example=1")
	one.SetName("two")
	if _, err := fish.Create(t.Context(), one, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "exceeded quota: ") {
		t.Errorf("one fish too many: %v", err)
	}
	if err := fish.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.used(t, ns, "again", "count/fish.sea.example=0")
}

// A status that someone else writes is corrected at once.
func (c *rig) testQuotaStatus(t *testing.T) {
	ns := c.namespace(t, "status-quota")
	c.quota(t, ns, "q", corev1.ResourceQuotaSpec{Hard: hard("cpu=1")})
	c.used(t, ns, "q", "cpu=0")
	patch := []byte(`{"status":{"hard":{"cpu":"2"}}}`)
	if _, err := c.client.CoreV1().ResourceQuotas(ns).Patch(t.Context(), "q", types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	within(t, "the status follows the spec", func() error {
		q, err := c.client.CoreV1().ResourceQuotas(ns).Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q.Status.Hard.Cpu().Value() != 1 {
			return fmt.Errorf("hard %v", q.Status.Hard)
		}
		return nil
	})
}

// testServiceCIDR adds a range, uses it, and sees it stay while it is used.
func (c *rig) testServiceCIDR(t *testing.T) {
	ns := c.namespace(t, "ranges")
	cidrs := c.client.NetworkingV1().ServiceCIDRs()
	_, err := cidrs.Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "extra"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"203.0.113.0/24"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ready := func(want metav1.ConditionStatus) {
		t.Helper()
		within(t, "ready is "+string(want), func() error {
			r, err := cidrs.Get(t.Context(), "extra", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if cond := meta.FindStatusCondition(r.Status.Conditions,
				networkingv1.ServiceCIDRConditionReady); cond == nil || cond.Status != want || len(r.Finalizers) != 1 {
				return fmt.Errorf("%+v", r)
			}
			return nil
		})
	}
	ready(metav1.ConditionTrue)
	service := func(name, ip string) error {
		_, err := c.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	}
	if err := service("there", "203.0.113.10"); err != nil {
		t.Fatal(err)
	}
	if err := cidrs.Delete(t.Context(), "extra", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ready(metav1.ConditionFalse)
	if err := service("late", "203.0.113.11"); err == nil || !strings.Contains(err.Error(), "the provided network does not match the current range") {
		t.Errorf("an address of a range that goes: %v", err)
	}
	if err := c.client.CoreV1().Services(ns).Delete(t.Context(), "there", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "the range is gone", func() error {
		if _, err := cidrs.Get(t.Context(), "extra", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %w", err)
		}
		return nil
	})
}

// testAddressRepair loses a Service's IPAddress, as a cluster from before has it.
func (c *rig) testAddressRepair(t *testing.T) {
	ns := c.namespace(t, "repair")
	s, err := c.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses := c.client.NetworkingV1().IPAddresses()
	first, err := addresses.Get(t.Context(), s.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := addresses.Delete(t.Context(), s.Spec.ClusterIP, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "the address is back", func() error {
		a, err := addresses.Get(t.Context(), s.Spec.ClusterIP, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if a.UID == first.UID || a.Spec.ParentRef.Name != "web" || !netip.MustParseAddr(a.Name).IsValid() {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
}
