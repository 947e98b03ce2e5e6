package core_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

var (
	ctx    = context.Background()
	create = metav1.CreateOptions{}
	get    = metav1.GetOptions{}
	update = metav1.UpdateOptions{}
)

// TestAPI runs a server once for all that needs storage.
func TestAPI(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	c := s.Kubernetes(t)
	ensureNamespace(t, c, "default")
	ensureRange(t, c)
	for name, test := range map[string]func(*testing.T, kubernetes.Interface){
		"PodLife": podLife, "PodUpdate": podUpdate, "Eviction": eviction,
		"ServiceTypes": serviceTypes, "Namespace": namespaceLife, "Selectors": selectors,
		"Ephemeral": ephemeral, "Resize": resize,
		"SecretsAndMaps": secretsAndMaps, "Events": events, "Node": nodes,
		"ReplicationController": replicationController, "JobLabels": jobLabels,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	t.Run("Tables", func(t *testing.T) { tables(t, c, s.Config) })
}

// jobLabels: a job without labels has those of its template, and these with what the
// server adds to them, also through all that a request goes through.
func jobLabels(t *testing.T, c kubernetes.Interface) {
	for name, want := range map[string]int{"without": 5, "with": 1} {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
					Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}}}
		if name == "with" {
			j.Labels = map[string]string{"app": name}
		}
		made := must[*batchv1.Job](t)(c.BatchV1().Jobs("default").Create(ctx, j, create))
		if len(made.Labels) != want || len(made.Spec.Template.Labels) != 5 {
			t.Errorf("%s: labels %v, of the template %v", name, made.Labels, made.Spec.Template.Labels)
		}
	}
}

func ensureNamespace(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, create)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// ensureRange makes the default range of cluster IPs, as the coordinator does.
func ensureRange(t testing.TB, c kubernetes.Interface) {
	t.Helper()
	ranges := c.NetworkingV1().ServiceCIDRs()
	made, err := ranges.Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []metav1.Condition{
		{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if _, err := ranges.UpdateStatus(ctx, made, update); err != nil {
		t.Fatal(err)
	}
}

func aPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}},
	}
}

func bindTo(t *testing.T, c kubernetes.Interface, pod, node string) error {
	t.Helper()
	return c.CoreV1().Pods("default").Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "default"},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, create)
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q lacks %q", err, p)
		}
	}
}

// podLife: created, bound, deleted with grace and then by the agent.
func podLife(t *testing.T, c kubernetes.Interface) {
	pods := c.CoreV1().Pods("default")
	p := must[*corev1.Pod](t)(pods.Create(ctx, aPod("life"), create))
	if p.Status.Phase != corev1.PodPending || p.Status.QOSClass != corev1.PodQOSBestEffort || p.Generation != 1 {
		t.Errorf("status %+v, generation %d", p.Status, p.Generation)
	}
	if p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways || *p.Spec.TerminationGracePeriodSeconds != 30 ||
		!*p.Spec.EnableServiceLinks {
		t.Errorf("defaults: %+v", p.Spec)
	}
	p.Spec.NodeName = "n1"
	_, err := pods.Update(ctx, p, update)
	wantError(t, err, "spec: Forbidden: pod updates may not change fields other than")
	if err := bindTo(t, c, "life", "n1"); err != nil {
		t.Fatal(err)
	}
	wantError(t, bindTo(t, c, "life", "n2"), `Operation cannot be fulfilled on pods/binding "life": pod life is already assigned to node "n1"`)
	p = must[*corev1.Pod](t)(pods.Get(ctx, "life", get))
	if p.Spec.NodeName != "n1" || len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Type != corev1.PodScheduled {
		t.Fatalf("after bind: %q %+v", p.Spec.NodeName, p.Status.Conditions)
	}
	if err := pods.Delete(ctx, "life", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p = must[*corev1.Pod](t)(pods.Get(ctx, "life", get))
	if p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 {
		t.Fatalf("deletion %v %v", p.DeletionTimestamp, p.DeletionGracePeriodSeconds)
	}
	zero := int64(0)
	if err := pods.Delete(ctx,
		"life", metav1.DeleteOptions{GracePeriodSeconds: &zero,
			Preconditions: &metav1.Preconditions{UID: &p.UID}}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "life", get); !apierrors.IsNotFound(err) {
		t.Fatalf("after grace 0: %v", err)
	}
	must[*corev1.Pod](t)(pods.Create(ctx, aPod("unbound"), create))
	if err := pods.Delete(ctx, "unbound", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "unbound", get); !apierrors.IsNotFound(err) {
		t.Fatalf("an unscheduled pod stays: %v", err)
	}
	bad := aPod("bad")
	bad.Spec.Containers[0].Name = "C"
	_, err = pods.Create(ctx, bad, create)
	wantError(t, err, `Pod "bad" is invalid: spec.containers[0].name: Invalid value: "C"`)
}

func podUpdate(t *testing.T, c kubernetes.Interface) {
	pods := c.CoreV1().Pods("default")
	gated := aPod("gated")
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/a"}}
	p := must[*corev1.Pod](t)(pods.Create(ctx, gated, create))
	if len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Reason != "SchedulingGated" {
		t.Fatalf("conditions %+v", p.Status.Conditions)
	}
	wantError(t, bindTo(t, c, "gated", "n1"), "has non-empty .spec.schedulingGates")
	p.Spec.SchedulingGates = nil
	p.Spec.Containers[0].Image = "busybox:1"
	p.Spec.NodeSelector = map[string]string{"a": "b"}
	p = must[*corev1.Pod](t)(pods.Update(ctx, p, update))
	if p.Generation != 2 {
		t.Errorf("generation %d", p.Generation)
	}
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/b"}}
	_, err := pods.Update(ctx, p, update)
	wantError(t, err, "only deletion is allowed, but found new scheduling gate 'example.com/b'")
}

func eviction(t *testing.T, c kubernetes.Interface) {
	pods := c.CoreV1().Pods("default")
	for _, name := range []string{"e1", "e2"} {
		p := aPod(name)
		p.Labels = map[string]string{"app": "evict"}
		must[*corev1.Pod](t)(pods.Create(ctx, p, create))
		if err := bindTo(t, c, name, "n1"); err != nil {
			t.Fatal(err)
		}
		p = must[*corev1.Pod](t)(pods.Get(ctx, name, get))
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		must[*corev1.Pod](t)(pods.UpdateStatus(ctx, p, update))
	}
	one := intstr.FromInt32(1)
	budgets := c.PolicyV1().PodDisruptionBudgets("default")
	b := must[*policyv1.PodDisruptionBudget](t)(budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "pdb"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "evict"}}},
	}, create))
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, DisruptionsAllowed: 1,
		CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
	must[*policyv1.PodDisruptionBudget](t)(budgets.UpdateStatus(ctx, b, update))
	evict := func(name string) error {
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
	}
	older := &policyv1beta1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "e1", Namespace: "default"}}
	if err := pods.EvictV1beta1(ctx, older); err != nil {
		t.Fatal(err)
	}
	p := must[*corev1.Pod](t)(pods.Get(ctx, "e1", get))
	if p.DeletionTimestamp == nil ||
		!slices.ContainsFunc(p.Status.Conditions,
			func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget }) {
		t.Errorf("evicted pod: %v %+v", p.DeletionTimestamp, p.Status.Conditions)
	}
	b = must[*policyv1.PodDisruptionBudget](t)(budgets.Get(ctx, "pdb", get))
	if b.Status.DisruptionsAllowed != 0 || len(b.Status.DisruptedPods) != 1 {
		t.Errorf("budget %+v", b.Status)
	}
	err := evict("e2")
	if !apierrors.IsTooManyRequests(err) {
		t.Fatalf("second eviction: %v", err)
	}
	wantError(t, err, "Cannot evict pod as it would violate the pod's disruption budget.")
	cause := err.(apierrors.APIStatus).Status().Details.Causes[0]
	if cause.Type != policyv1.DisruptionBudgetCause || !strings.Contains(cause.Message, "The disruption budget pdb") {
		t.Errorf("cause %+v", cause)
	}
}

func namespaceLife(t *testing.T, c kubernetes.Interface) {
	namespaces := c.CoreV1().Namespaces()
	n := must[*corev1.Namespace](t)(namespaces.Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "gone-"}}, create))
	if n.Status.Phase != corev1.NamespaceActive ||
		!slices.Equal(n.Spec.Finalizers, []corev1.FinalizerName{"kubernetes"}) ||
		n.Labels["kubernetes.io/metadata.name"] != n.Name {
		t.Fatalf("%+v", n)
	}
	err := c.CoreV1().RESTClient().Delete().Resource("namespaces").Do(ctx).Error()
	if !apierrors.IsMethodNotSupported(err) {
		t.Errorf("deletion of all namespaces: %v", err)
	}
	if err := namespaces.Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n = must[*corev1.Namespace](t)(namespaces.Get(ctx, n.Name, get))
	if n.Status.Phase != corev1.NamespaceTerminating || n.DeletionTimestamp == nil {
		t.Fatalf("after delete: %+v", n)
	}
	n.Spec.Finalizers = nil
	must[*corev1.Namespace](t)(namespaces.Finalize(ctx, n, update))
	if _, err := namespaces.Get(ctx, n.Name, get); !apierrors.IsNotFound(err) {
		t.Fatalf("after finalize: %v", err)
	}
}

func selectors(t *testing.T, c kubernetes.Interface) {
	pods := c.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, aPod("sel"), create))
	if err := bindTo(t, c, "sel", "selected"); err != nil {
		t.Fatal(err)
	}
	for selector, want := range map[string]int{
		"spec.nodeName=selected": 1, "spec.nodeName=selected,status.phase!=Pending": 0,
		"spec.nodeName=selected,metadata.name=sel,spec.hostNetwork=false": 1,
	} {
		list := must[*corev1.PodList](t)(pods.List(ctx, metav1.ListOptions{FieldSelector: selector}))
		if len(list.Items) != want {
			t.Errorf("%s: %d pods, want %d", selector, len(list.Items), want)
		}
	}
	_, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.hostname=a"})
	wantError(t, err, "field label not supported: spec.hostname")
}

func ephemeral(t *testing.T, c kubernetes.Interface) {
	pods := c.CoreV1().Pods("default")
	p := must[*corev1.Pod](t)(pods.Create(ctx, aPod("debugged"), create))
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "dbg", Image: "busybox:1"}}}
	p = must[*corev1.Pod](t)(pods.UpdateEphemeralContainers(ctx, p.Name, p, update))
	if len(p.Spec.EphemeralContainers) != 1 || p.Generation != 2 {
		t.Fatalf("%+v", p.Spec.EphemeralContainers)
	}
	p.Spec.EphemeralContainers = nil
	_, err := pods.UpdateEphemeralContainers(ctx, p.Name, p, update)
	wantError(t, err, `existing ephemeral containers "dbg" may not be removed`)
}

func resize(t *testing.T, c kubernetes.Interface) {
	pods := c.CoreV1().Pods("default")
	p := aPod("resized")
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
	p = must[*corev1.Pod](t)(pods.Create(ctx, p, create))
	patch := []byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"200m"}}}]}}`)
	p = must[*corev1.Pod](t)(pods.Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize"))
	if q := p.Spec.Containers[0].Resources.Requests["cpu"]; q.String() != "200m" {
		t.Fatalf("%+v", p.Spec.Containers[0].Resources)
	}
	bad := []byte(`{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"200m","memory":"1Gi"},"requests":{"memory":"1Gi"}}}]}}`)
	_, err := pods.Patch(ctx, p.Name, types.StrategicMergePatchType, bad, metav1.PatchOptions{}, "resize")
	wantError(t, err, "Pod QOS Class may not change as a result of resizing")
}

func secretsAndMaps(t *testing.T, c kubernetes.Interface) {
	yes := true
	s := must[*corev1.Secret](t)(c.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "v"}, Immutable: &yes,
	}, create))
	if string(s.Data["k"]) != "v" || s.StringData != nil || s.Type != corev1.SecretTypeOpaque {
		t.Fatalf("%+v", s)
	}
	s.Data["k"] = []byte("w")
	_, err := c.CoreV1().Secrets("default").Update(ctx, s, update)
	wantError(t, err, "data: Forbidden: field is immutable when `immutable` is set")
	m := must[*corev1.ConfigMap](t)(c.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"a": "b"}}, create))
	m.Data[".."] = "x"
	_, err = c.CoreV1().ConfigMaps("default").Update(ctx, m, update)
	wantError(t, err, `data[..]: Invalid value: ".."`)
}

func events(t *testing.T, c kubernetes.Interface) {
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e.1", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "default"},
		Reason:         "Started", Message: "m", Type: "Normal",
	}
	must[*corev1.Event](t)(c.CoreV1().Events("default").Create(ctx, e, create))
	list := must[*corev1.EventList](t)(c.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=Started"}))
	if len(list.Items) != 1 {
		t.Fatalf("%d events", len(list.Items))
	}
	newer, err := c.EventsV1().Events("default").Get(ctx, "e.1", get)
	if err != nil || newer.Note != "m" || newer.Regarding.Name != "p" {
		t.Fatalf("events.k8s.io: %v %+v", err, newer)
	}
	// The older API takes any name; the newer wants one of DNS.
	e.Name = "E_2"
	must[*corev1.Event](t)(c.CoreV1().Events("default").Create(ctx, e, create))
	newer.ObjectMeta = metav1.ObjectMeta{Name: "E_3", Namespace: "default"}
	_, err = c.EventsV1().Events("default").Create(ctx, newer, create)
	wantError(t, err, "metadata.name: Invalid value")
}

func nodes(t *testing.T, c kubernetes.Interface) {
	n := must[*corev1.Node](t)(c.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "worker",
			Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("2")}},
	}, create))
	if len(n.Status.Allocatable) != 1 {
		t.Errorf("allocatable %v", n.Status.Allocatable)
	}
	n.Spec.PodCIDR = "10.244.1.0/24"
	n = must[*corev1.Node](t)(c.CoreV1().Nodes().Update(ctx, n, update))
	if len(n.Spec.PodCIDRs) != 1 {
		t.Errorf("podCIDRs %v", n.Spec.PodCIDRs)
	}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.2.0/24", []string{"10.244.2.0/24"}
	_, err := c.CoreV1().Nodes().Update(ctx, n, update)
	wantError(t, err, `node updates may not change podCIDR except from "" to valid`)
	for _, list := range [][]string{
		{"10.244.1.0/24", "10.244.2.0/24"}, {"fd00::/64", "10.244.1.0/24"}, {"10.244.1.0/24", "fd00::/64"},
	} { // a range of the other family may come after the one that there is
		n.Spec.PodCIDR, n.Spec.PodCIDRs = list[0], list
		_, err := c.CoreV1().Nodes().Update(ctx, n, update)
		if last := list[1] == "fd00::/64"; last != (err == nil) {
			t.Errorf("podCIDRs %v: %v", list, err)
		}
	}
}

func replicationController(t *testing.T, c kubernetes.Interface) {
	rcs := c.CoreV1().ReplicationControllers("default")
	r := must[*corev1.ReplicationController](t)(rcs.Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec: corev1.ReplicationControllerSpec{Template: &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: aPod("x").Spec,
		}},
	}, create))
	if *r.Spec.Replicas != 1 || r.Spec.Selector["a"] != "b" {
		t.Fatalf("%+v", r.Spec)
	}
	s, err := rcs.GetScale(ctx, "rc", get)
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.Replicas = 3
	if s, err = rcs.UpdateScale(ctx, "rc", s, update); err != nil || s.Spec.Replicas != 3 {
		t.Fatalf("%v %+v", err, s)
	}
}

func tables(t *testing.T, c kubernetes.Interface, config *rest.Config) {
	client := must[*http.Client](t)(rest.HTTPClientFor(config))
	print := func(path string) string {
		req := must[*http.Request](t)(http.NewRequest("GET", config.Host+path, nil))
		req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		resp := must[*http.Response](t)(client.Do(req))
		defer resp.Body.Close()
		table := metav1.Table{}
		if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		for _, column := range table.ColumnDefinitions {
			fmt.Fprintf(&out, "%s|", column.Name)
		}
		for _, row := range table.Rows {
			fmt.Fprintf(&out, "\n%v", row.Cells)
		}
		return out.String()
	}
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/pods/resized": "Name|Ready|Status|Restarts|Age|IP|Node|Nominated Node|Readiness Gates|\n[resized 0/1 Pending 0 ",
		"/api/v1/nodes/worker":                    "Name|Status|Roles|Age|Version|Internal-IP|External-IP|OS-Image|Kernel-Version|Container-Runtime|\n[worker Unknown control-plane ",
		"/api/v1/namespaces/default/services/lb":  "Name|Type|Cluster-IP|External-IP|Port(s)|Age|Selector|\n[lb LoadBalancer 10.96.",
		"/api/v1/namespaces/default/secrets/s":    "Name|Type|Data|Age|\n[s Opaque 1 ",
		"/api/v1/namespaces/default/events/e.1":   "Last Seen|Type|Reason|Object|Subobject|Source|Message|First Seen|Count|Name|\n[<unknown> Normal Started pod/p   m <unknown> 1 e.1]",
		"/api/v1/namespaces/default":              "Name|Status|Age|\n[default Active ",
	} {
		if got := print(path); !strings.HasPrefix(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
		}
	}
}
