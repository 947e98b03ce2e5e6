package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"

	"github.com/shoal-project/shoal/agent/gossip"
)

// The controllers run as in the coordinator, on in-process informers.
func TestControllers(t *testing.T) {
	c := newRig(t, false)
	t.Run("Deployment", c.testDeployment)
	t.Run("Recreate", c.testRecreate)
	t.Run("Namespace", c.testNamespace)
	t.Run("GarbageCollector", c.testGarbage)
	t.Run("Service", c.testService)
	t.Run("TopologyHints", c.testTopologyHints)
	t.Run("Job", c.testJob)
	t.Run("DaemonSet", c.testDaemonSet)
	t.Run("StatefulSet", c.testStatefulSet)
	t.Run("Autoscaler", c.testAutoscaler)
	t.Run("AutoscalerOfUse", c.testAutoscalerOfUse)
	t.Run("CronJob", c.testCronJob)
	t.Run("DisruptionBudget", c.testBudget)
	t.Run("DisruptionBudgetOfAnyOwner", c.testScaledBudget)
	t.Run("DeadMember", c.testDeadMember)
	t.Run("CustomResource", c.testCustomResource)
	t.Run("TokenSecret", c.testTokenSecret)
	t.Run("BootstrapToken", c.testBootstrapToken)
	t.Run("PolicyStatus", c.testPolicyStatus)
	t.Run("NodeTTL", c.testNodeTTL)
	t.Run("NodeRanges", c.testNodeRanges)
	t.Run("ResourceClaim", c.testResourceClaim)
	t.Run("IdentityLease", c.testIdentityLease)
	t.Run("StaleDisruption", c.testStaleDisruption)
	t.Run("SecondTerm", c.testSecondTerm)
}

// Over HTTP, as controllers of others work, they must do the same: where objects
// are made, changed and deleted, also without types, and where a term ends.
func TestControllersOverHTTP(t *testing.T) {
	c := newRig(t, true)
	t.Run("Deployment", c.testDeployment)
	t.Run("Namespace", c.testNamespace)
	t.Run("GarbageCollector", c.testGarbage)
	t.Run("CustomResource", c.testCustomResource)
	t.Run("SecondTerm", c.testSecondTerm)
}

func (c *rig) deploy(t *testing.T, ns string, replicas int32, strategy appsv1.DeploymentStrategyType) *appsv1.Deployment {
	t.Helper()
	d, err := c.client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: selector("web"), Template: template("web", "one"),
			Strategy: appsv1.DeploymentStrategy{Type: strategy},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (c *rig) patch(t *testing.T, ns, patch string) {
	t.Helper()
	if _, err := c.client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// rolled waits for a complete rollout at a revision and image.
func (c *rig) rolled(t *testing.T, ns, revision, image string, replicas int32) {
	t.Helper()
	within(t, "revision "+revision, func() error {
		d, err := c.client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration < d.Generation || s.Replicas != replicas || s.UpdatedReplicas != replicas ||
			s.AvailableReplicas != replicas ||
			d.Annotations["deployment.kubernetes.io/revision"] != revision {
			return fmt.Errorf("status %+v, annotations %v", s, d.Annotations)
		}
		pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != int(replicas) {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		for _, p := range pods.Items {
			if p.Spec.Containers[0].Image != image {
				return fmt.Errorf("pod of image %s", p.Spec.Containers[0].Image)
			}
		}
		return nil
	})
}

func (c *rig) testDeployment(t *testing.T) { // DEP-2, DEP-13, DEP-35, DEP-36, DEP-39, GC-7
	ns := c.namespace(t, "deployment")
	c.deploy(t, ns, 3, "")
	c.rolled(t, ns, "1", "one", 3)
	c.patch(t, ns, `{"spec":{"replicas":5}}`)
	c.rolled(t, ns, "1", "one", 5)
	c.patch(t, ns, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	c.rolled(t, ns, "2", "two", 5)
	c.patch(t, ns, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"one"}]}}}}`)
	c.rolled(t, ns, "3", "one", 5)
	sets, err := c.client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 2 {
		t.Errorf("%d ReplicaSets, %v; the rollback should have used the first one again", len(sets.Items), err)
	}
	within(t, "events", func() error {
		events, err := c.client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=ScalingReplicaSet"})
		if err != nil || len(events.Items) == 0 {
			return fmt.Errorf("%d events, %w", len(events.Items), err)
		}
		return nil
	})
	if err := c.client.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "cascade", func() error {
		pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		return nil
	})
}

func (c *rig) testRecreate(t *testing.T) {
	ns := c.namespace(t, "recreate")
	c.deploy(t, ns, 2, appsv1.RecreateDeploymentStrategyType)
	c.rolled(t, ns, "1", "one", 2)
	c.patch(t, ns, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	c.rolled(t, ns, "2", "two", 2)
}

func (c *rig) testNamespace(t *testing.T) {
	ns := c.namespace(t, "short-lived")
	within(t, "default account and CA", func() error {
		_, err := c.client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		_, err2 := c.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return errors.Join(err, err2)
	})
	c.deploy(t, ns, 2, "")
	c.rolled(t, ns, "1", "one", 2)
	if err := c.client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "namespace gone", func() error {
		_, err := c.client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there, %w", err)
	})
}

func (c *rig) configMap(t *testing.T, ns, name string, owners ...*corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	yes := true
	for _, o := range owners {
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID, BlockOwnerDeletion: &yes,
		})
	}
	m, err := c.client.CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (c *rig) gone(t *testing.T, ns string, names ...string) {
	t.Helper()
	within(t, fmt.Sprint(names, " gone"), func() error {
		for _, name := range names {
			if _, err := c.client.CoreV1().ConfigMaps(ns).Get(t.Context(), name,
				metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s is there, %w", name, err)
			}
		}
		return nil
	})
}

func (c *rig) testGarbage(t *testing.T) { // GC-3, GC-8..11
	ns := c.namespace(t, "garbage")
	remove := func(name string, policy metav1.DeletionPropagation) {
		t.Helper()
		if err := c.client.CoreV1().ConfigMaps(ns).Delete(t.Context(), name,
			metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
	}
	a := c.configMap(t, ns, "a")
	b := c.configMap(t, ns, "b", a)
	c.configMap(t, ns, "c", b)
	remove("a", metav1.DeletePropagationBackground)
	c.gone(t, ns, "a", "b", "c")

	d := c.configMap(t, ns, "d")
	held := c.configMap(t, ns, "e", d)
	held.Finalizers = []string{"test.example.com/hold"}
	if _, err := c.client.CoreV1().ConfigMaps(ns).Update(t.Context(), held, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	remove("d", metav1.DeletePropagationForeground)
	within(t, "dependent being deleted", func() error {
		m, err := c.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "e", metav1.GetOptions{})
		if err == nil && m.DeletionTimestamp == nil {
			err = errors.New("not yet")
		}
		return err
	})
	if _, err := c.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "d", metav1.GetOptions{}); err != nil {
		t.Errorf("the owner did not wait: %v", err)
	}
	if _, err := c.client.CoreV1().ConfigMaps(ns).Patch(t.Context(), "e", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.gone(t, ns, "d", "e")

	f := c.configMap(t, ns, "f")
	c.configMap(t, ns, "g", f)
	remove("f", metav1.DeletePropagationOrphan)
	c.gone(t, ns, "f")
	g, err := c.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "g", metav1.GetOptions{})
	if err != nil || len(g.OwnerReferences) != 0 {
		t.Errorf("orphan: %+v, %v", g, err)
	}

	c.configMap(t, ns, "h", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "never", UID: "was-there"}})
	c.gone(t, ns, "h")
	keep := c.configMap(t, ns, "i", g, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "never", UID: "was-there"}})
	within(t, "absent owner unlinked", func() error {
		m, err := c.client.CoreV1().ConfigMaps(ns).Get(t.Context(), keep.Name, metav1.GetOptions{})
		if err == nil && len(m.OwnerReferences) != 1 {
			err = fmt.Errorf("owners %v", m.OwnerReferences)
		}
		return err
	})
}

func (c *rig) testService(t *testing.T) {
	ns := c.namespace(t, "service")
	c.node(t, "host")
	defer func() { _ = c.client.CoreV1().Nodes().Delete(context.Background(), "host", metav1.DeleteOptions{}) }()
	c.deploy(t, ns, 1, "")
	c.patch(t, ns, `{"spec":{"template":{"spec":{"nodeName":"host"}}}}`)
	_, err := c.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "endpoints", func() error {
		slices, err := c.client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 ||
			!*slices.Items[0].Endpoints[0].Conditions.Ready {
			return fmt.Errorf("slices %v, %w", slices.Items, err)
		}
		e, err := c.client.CoreV1().Endpoints(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != 1 || e.Subsets[0].Ports[0].Port != 80) {
			err = fmt.Errorf("endpoints %v", e.Subsets)
		}
		return err
	})
}

// A Service that asks for topology aware routing gets its hints also when its
// nodes tell their zones after it.
func (c *rig) testTopologyHints(t *testing.T) {
	ns := c.namespace(t, "hints")
	if _, err := c.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{corev1.AnnotationTopologyMode: "Auto"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "hints"},
			Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	zones := []string{"north", "south"}
	for _, zone := range zones {
		c.node(t, zone)
		defer func() { _ = c.client.CoreV1().Nodes().Delete(context.Background(), zone, metav1.DeleteOptions{}) }()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: zone, Labels: map[string]string{"app": "hints"}},
			Spec: template("hints", "one").Spec}
		pod.Spec.NodeName = zone
		if _, err := c.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	slice := func() (*discoveryv1.EndpointSlice, error) {
		l, err := c.client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(l.Items) != 1 || len(l.Items[0].Endpoints) != 2) {
			err = fmt.Errorf("slices %v", l.Items)
		}
		if err != nil {
			return nil, err
		}
		return &l.Items[0], nil
	}
	within(t, "endpoints", func() error { _, err := slice(); return err })
	for _, zone := range zones {
		if _, err := c.client.CoreV1().Nodes().Patch(t.Context(), zone, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"`+zone+`"}}}`),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.CoreV1().Nodes().Patch(t.Context(), zone, types.MergePatchType,
			[]byte(`{"status":{"allocatable":{"cpu":"4"}}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	within(t, "hints", func() error {
		s, err := slice()
		if err != nil {
			return err
		}
		for _, e := range s.Endpoints {
			if e.Hints == nil || len(e.Hints.ForZones) != 1 || e.Hints.ForZones[0].Name != *e.NodeName {
				return fmt.Errorf("endpoint %v", e)
			}
		}
		return nil
	})
}

func (c *rig) testJob(t *testing.T) {
	ns := c.namespace(t, "job")
	three, two := int32(3), int32(2)
	spec := template("job", "done")
	spec.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := c.client.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "sum"},
		Spec:       batchv1.JobSpec{Completions: &three, Parallelism: &two, Template: spec},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "job complete", func() error {
		j, err := c.client.BatchV1().Jobs(ns).Get(t.Context(), "sum", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if j.Status.Succeeded != 3 || j.Status.Active != 0 || j.Status.CompletionTime == nil {
			return fmt.Errorf("status %+v", j.Status)
		}
		return nil
	})
	pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 3 {
		t.Errorf("%d pods, %v", len(pods.Items), err)
	}
	for _, p := range pods.Items {
		if len(p.Finalizers) > 0 {
			t.Errorf("%s keeps %v", p.Name, p.Finalizers)
		}
	}
}

func (c *rig) node(t *testing.T, name string) {
	t.Helper()
	n, err := c.client.CoreV1().Nodes().Create(t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "node "+name+" Ready", func() error {
		if n, err = c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
		_, err = c.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		return err
	})
}

func (c *rig) testDaemonSet(t *testing.T) {
	ns := c.namespace(t, "daemonset")
	c.node(t, "n1")
	c.node(t, "n2")
	ds, err := c.client.AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "ds"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector("ds"), Template: template("ds", "one")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	current := func(image string, revisions int) func() error {
		return func() error {
			ds, err = c.client.AppsV1().DaemonSets(ns).Get(t.Context(), "ds", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := ds.Status; s.ObservedGeneration < ds.Generation || s.DesiredNumberScheduled != 2 ||
				s.UpdatedNumberScheduled != 2 || s.NumberAvailable != 2 {
				return fmt.Errorf("status %+v", s)
			}
			revs, err := c.client.AppsV1().ControllerRevisions(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(revs.Items) != revisions {
				return fmt.Errorf("%d revisions, %w", len(revs.Items), err)
			}
			pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(pods.Items) != 2 || pods.Items[0].Spec.Containers[0].Image != image ||
				pods.Items[1].Spec.Containers[0].Image != image {
				return fmt.Errorf("%d pods, %w", len(pods.Items), err)
			}
			return nil
		}
	}
	within(t, "a pod a node", current("one", 1))
	ds.Spec.Template.Spec.Containers[0].Image = "two"
	if _, err := c.client.AppsV1().DaemonSets(ns).Update(t.Context(), ds, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "rolled", current("two", 2))
	within(t, "pod networks", func() error { // NODE-36
		nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err == nil &&
			(nodes.Items[0].Spec.PodCIDR == "" || nodes.Items[0].Spec.PodCIDR == nodes.Items[1].Spec.PodCIDR) {
			err = fmt.Errorf("%q and %q", nodes.Items[0].Spec.PodCIDR, nodes.Items[1].Spec.PodCIDR)
		}
		return err
	})
}

func (c *rig) testBudget(t *testing.T) {
	ns := c.namespace(t, "budget")
	c.deploy(t, ns, 3, "")
	half := intstr.FromString("50%")
	_, err := c.client.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector("web"), MinAvailable: &half},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "budget", func() error {
		b, err := c.client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (b.Status.ExpectedPods != 3 || b.Status.DesiredHealthy != 2 || b.Status.DisruptionsAllowed != 1) {
			err = fmt.Errorf("status %+v", b.Status)
		}
		return err
	})
}

// testScaledBudget: a budget counts the replicas of any owner that has a scale,
// here a ReplicationController, of which this cluster runs no controller.
func (c *rig) testScaledBudget(t *testing.T) {
	ns := c.namespace(t, "scaled")
	three, one := int32(3), intstr.FromInt32(1)
	spec := template("rc", "one")
	owner, err := c.client.CoreV1().ReplicationControllers(ns).Create(t.Context(), &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec: corev1.ReplicationControllerSpec{Replicas: &three,
			Selector: map[string]string{"app": "rc"}, Template: &spec},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "rc"}}, Spec: spec.Spec}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ReplicationController"))}
	if _, err := c.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector("rc"), MaxUnavailable: &one},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "budget", func() error {
		b, err := c.client.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "rc", metav1.GetOptions{})
		if err == nil && (b.Status.ExpectedPods != 3 || b.Status.DesiredHealthy != 2) {
			err = fmt.Errorf("status %+v", b.Status)
		}
		return err
	})
}

func (c *rig) testDeadMember(t *testing.T) { // NODE-38, NODE-48
	ns := c.namespace(t, "dead")
	c.node(t, "mortal")
	agent := gossip.Member{Name: "mortal", Meta: gossip.Meta{Role: gossip.RoleAgent}, State: gossip.StateAlive}
	c.members.set(agent)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: template("p", "one").Spec}
	pod.Spec.NodeName = "mortal"
	if _, err := c.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	state := func(ready corev1.ConditionStatus, taints int, podReady corev1.ConditionStatus) func() error {
		return func() error {
			n, err := c.client.CoreV1().Nodes().Get(t.Context(), "mortal", metav1.GetOptions{})
			if err != nil {
				return err
			}
			p, err := c.client.CoreV1().Pods(ns).Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil || len(p.Status.Conditions) == 0 {
				return fmt.Errorf("pod without conditions, %w", err)
			}
			if n.Status.Conditions[0].Status != ready || len(n.Spec.Taints) != taints || podReady != "" &&
				p.Status.Conditions[0].Status != podReady {
				return fmt.Errorf("node %+v, taints %v, pod %v", n.Status.Conditions[0],
					n.Spec.Taints, p.Status.Conditions)
			}
			return nil
		}
	}
	within(t, "alive", state("True", 0, "True"))
	agent.State, agent.Since = gossip.StateDead, time.Now()
	c.members.set(agent)
	within(t, "dead: unknown, NoSchedule only, pod not ready", state("Unknown", 1, "False"))
	agent.State, agent.Since = gossip.StateAlive, time.Now()
	c.members.set(agent)
	within(t, "alive again", state("True", 0, ""))
}

func (c *rig) testCustomResource(t *testing.T) { // GC-7, for a kind that came later
	ns := c.namespace(t, "custom")
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err = crds.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "fish.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "fish", "kind": "Fish"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fish := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "fish"}).
		Namespace(ns)
	create := func(name string, owners ...metav1.OwnerReference) (made *unstructured.Unstructured) {
		within(t, name+" created", func() error {
			u := &unstructured.Unstructured{}
			u.SetAPIVersion("example.com/v1")
			u.SetKind("Fish")
			u.SetName(name)
			u.SetOwnerReferences(owners)
			var err error
			made, err = fish.Create(t.Context(), u, metav1.CreateOptions{})
			return err
		})
		return made
	}
	owner := create("owner")
	create("dependent",
		metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Fish", Name: "owner", UID: owner.GetUID()})
	if err := fish.Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "dependent gone", func() error {
		if _, err := fish.Get(t.Context(), "dependent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there, %w", err)
		}
		return nil
	})
	if err := crds.Delete(t.Context(), "fish.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A new term works on informers that an earlier one has used.
func (c *rig) testSecondTerm(t *testing.T) {
	c.resign()
	ns := c.namespace(t, "second-term")
	c.deploy(t, ns, 2, "")
	c.lead(t)
	c.rolled(t, ns, "1", "one", 2)
	if err := c.client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "namespace gone", func() error {
		if _, err := c.client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there, %w", err)
		}
		return nil
	})
}
