package admission

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// request is one write to be admitted.
type request struct {
	user            user.Info
	resource        string // "pods", "nodes/status"
	group           string
	namespace, name string
	operation       admission.Operation
	obj, old        runtime.Object
}

func (r request) attributes() admission.Attributes {
	res, sub, _ := strings.Cut(r.resource, "/")
	if r.user == nil {
		r.user = &user.DefaultInfo{Name: "anna"}
	}
	if r.operation == "" {
		r.operation = admission.Create
	}
	return admission.NewAttributesRecord(r.obj, r.old, schema.GroupVersionKind{}, r.namespace, r.name,
		schema.GroupVersionResource{Group: r.group, Version: "v1", Resource: res}, sub, r.operation, nil, false, r.user)
}

func admit(p admission.Interface, r request) error {
	a := r.attributes()
	if m, ok := p.(admission.MutationInterface); ok {
		if err := m.Admit(context.Background(), a, nil); err != nil {
			return err
		}
	}
	if v, ok := p.(admission.ValidationInterface); ok {
		return v.Validate(context.Background(), a, nil)
	}
	return nil
}

func admitPod(p admission.Interface, pod *corev1.Pod) error {
	return admit(p, request{resource: "pods", namespace: "ns", name: pod.Name, obj: pod})
}

// connect gives a plugin a client and informers of objects.
func connect[P any](t *testing.T, p P, objects ...runtime.Object) (P, kubernetes.Interface) {
	t.Helper()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	if p, ok := any(p).(interface{ SetExternalKubeClientSet(kubernetes.Interface) }); ok {
		p.SetExternalKubeClientSet(client)
	}
	if p, ok := any(p).(interface {
		SetExternalKubeInformerFactory(informers.SharedInformerFactory)
	}); ok {
		p.SetExternalKubeInformerFactory(factory)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	return p, client
}

func check(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want %q", err, want)
	}
}

func account(name string, change func(*corev1.ServiceAccount)) *corev1.ServiceAccount {
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if change != nil {
		change(sa)
	}
	return sa
}

func newPod(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}},
		Containers: []corev1.Container{{Name: "a"},
			{Name: "b", VolumeMounts: []corev1.VolumeMount{{Name: "own", MountPath: tokenMountPath}}}},
	}}
	if change != nil {
		change(pod)
	}
	return pod
}

// SEC-31, COM-4.
func TestServiceAccount(t *testing.T) {
	p, _ := connect(t, newServiceAccount(),
		account("default", func(sa *corev1.ServiceAccount) {
			sa.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		}),
		account("quiet", func(sa *corev1.ServiceAccount) { sa.AutomountServiceAccountToken = ptr.To(false) }),
		account("strict", func(sa *corev1.ServiceAccount) {
			sa.Annotations = map[string]string{enforceMountableSecrets: "true"}
			sa.Secrets = []corev1.ObjectReference{{Name: "good"}}
		}),
	)
	withSecret := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.ServiceAccountName = "strict"
			p.Spec.Volumes = []corev1.Volume{
				{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}}
		}
	}
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	for name, tt := range map[string]struct {
		change  func(*corev1.Pod)
		err     string
		account string
		pull    string
		mounts  int
	}{
		"default": {nil, "", "default", "registry", 2},
		"own_pull_secret": {func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
		}, "", "default", "mine", 2},
		"account_quiet": {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" }, "", "quiet", "", 0},
		"pod_wins": {func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.AutomountServiceAccountToken = "quiet", ptr.To(true)
		}, "", "quiet", "", 2},
		"unknown": {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "gone" },
			`error looking up service account ns/gone: serviceaccount "gone" not found`, "", "", 0},
		"mirror": {mirror, "", "", "", 0},
		"mirror_account": {func(p *corev1.Pod) { mirror(p); p.Spec.ServiceAccountName = "default" },
			"a mirror pod may not reference service accounts", "", "", 0},
		"mirror_secret": {func(p *corev1.Pod) { withSecret("x")(p); mirror(p); p.Spec.ServiceAccountName = "" },
			"a mirror pod may not reference secrets", "", "", 0},
		"strict_good": {withSecret("good"), "", "strict", "", 2},
		"strict_bad": {withSecret("bad"),
			`volume with secret.secretName="bad" is not allowed because service account strict does not reference that secret`,
			"", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(tt.change)
			err := admitPod(p, pod)
			check(t, err, tt.err)
			if tt.err != "" {
				return
			}
			if pod.Spec.ServiceAccountName != tt.account {
				t.Errorf("account %q, want %q", pod.Spec.ServiceAccountName, tt.account)
			}
			if tt.pull != "" && pod.Spec.ImagePullSecrets[0].Name != tt.pull {
				t.Errorf("pull secrets %v", pod.Spec.ImagePullSecrets)
			}
			if got := tokenMounts(pod); got != tt.mounts {
				t.Errorf("%d token mounts, want %d", got, tt.mounts)
			}
			// A second pass, as after a webhook, changes nothing.
			before := pod.DeepCopy()
			check(t, admitPod(p, pod), "")
			if len(before.Spec.Volumes) != len(pod.Spec.Volumes) || tokenMounts(pod) != tt.mounts {
				t.Error("not idempotent")
			}
		})
	}
}

func tokenMounts(pod *corev1.Pod) int {
	volume, n := "", 0
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil && strings.HasPrefix(v.Name, tokenVolumePrefix) {
			volume = v.Name
		}
	}
	for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		for _, m := range c.VolumeMounts {
			if m.Name == volume && m.MountPath == tokenMountPath && m.ReadOnly {
				n++
			}
		}
	}
	return n
}

// CMP-7: a pod that is quicker than its namespace's controller waits for it.
func TestServiceAccountArrivesLate(t *testing.T) {
	p, client := connect(t, newServiceAccount())
	synctest.Test(t, func(t *testing.T) {
		go func() {
			time.Sleep(100 * time.Millisecond)
			_, _ = client.CoreV1().ServiceAccounts("ns").Create(context.Background(),
				account("default", nil), metav1.CreateOptions{})
		}()
		begin := time.Now()
		check(t,
			p.Admit(context.Background(), request{resource: "pods", namespace: "ns", obj: newPod(nil)}.attributes(),
				nil), "")
		if d := time.Since(begin); d > 300*time.Millisecond {
			t.Errorf("waited %v", d)
		}
	})
}

func TestDefaultTolerationSeconds(t *testing.T) {
	p := newDefaultTolerationSeconds()
	for name, tt := range map[string]struct {
		has  []corev1.Toleration
		want int
	}{
		"none":       {nil, 2},
		"own":        {[]corev1.Toleration{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}, 2},
		"everything": {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, 1},
		"noschedule": {[]corev1.Toleration{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(func(p *corev1.Pod) { p.Spec.Tolerations = tt.has })
			check(t, admitPod(p, pod), "")
			if len(pod.Spec.Tolerations) != tt.want {
				t.Errorf("%d tolerations, want %d: %v", len(pod.Spec.Tolerations), tt.want, pod.Spec.Tolerations)
			}
		})
	}
}

func TestPriority(t *testing.T) {
	class := func(name string, value int32, isDefault bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value,
			GlobalDefault: isDefault, PreemptionPolicy: ptr.To(corev1.PreemptNever)}
	}
	withDefault, _ := connect(t, newPriority(), class("high", 1000, false), class("usual", 10, true))
	without, client := connect(t, newPriority())
	refuse := func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.GetAction).GetName()
		if strings.Contains(name, "/") { // as a real client does
			return true, nil, fmt.Errorf("invalid resource name %q: [may not contain '/']", name)
		}
		return false, nil, nil
	}
	client.(*fake.Clientset).PrependReactor("get", "priorityclasses", refuse)
	for name, tt := range map[string]struct {
		plugin   *priority
		change   func(*corev1.Pod)
		err      string
		class    string
		priority int32
	}{
		"named":      {withDefault, func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, "", "high", 1000},
		"default":    {withDefault, nil, "", "usual", 10},
		"no_default": {without, nil, "", "", 0},
		"unknown": {without, func(p *corev1.Pod) { p.Spec.PriorityClassName = "x" },
			"no PriorityClass with name x was found", "", 0},
		"slash": {without, func(p *corev1.Pod) { p.Spec.PriorityClassName = "x/y" },
			"no PriorityClass with name x/y was found", "", 0},
		"own_number": {without, func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](5) },
			"the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name",
			"", 0},
		"same_number": {withDefault, func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](10) }, "", "usual", 10},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(tt.change)
			check(t, admitPod(tt.plugin, pod), tt.err)
			if tt.err == "" && (pod.Spec.PriorityClassName != tt.class || *pod.Spec.Priority != tt.priority) {
				t.Errorf("got %q %d", pod.Spec.PriorityClassName, *pod.Spec.Priority)
			}
		})
	}
	err := admit(withDefault,
		request{resource: "priorityclasses", group: "scheduling.k8s.io", obj: class("second", 1, true)})
	check(t, err, "PriorityClass usual is already marked as default. Only one default can exist")
}

// RTC-11, RTC-12, RTC-13.
func TestRuntimeClass(t *testing.T) {
	overhead := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi")}
	p, _ := connect(t, newRuntimeClass(), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "vm", Overhead: &nodev1.Overhead{PodFixed: overhead},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"},
			Tolerations: []corev1.Toleration{{Key: "vm"}}},
	})
	named := func(name string, more func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.RuntimeClassName = &name
			if more != nil {
				more(p)
			}
		}
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		err    string
	}{
		"none":     {nil, ""},
		"merged":   {named("vm", nil), ""},
		"unknown":  {named("x", nil), `pod rejected: RuntimeClass "x" not found`},
		"conflict": {named("vm", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"vm": "no"} }), "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"},
		"overhead_empty": {func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{} },
			"pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		"overhead_alone": {func(p *corev1.Pod) { p.Spec.Overhead = overhead }, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(tt.change)
			check(t, admitPod(p, pod), tt.err)
			if name == "merged" &&
				(pod.Spec.NodeSelector["vm"] != "yes" || len(pod.Spec.Tolerations) != 1 || pod.Spec.Overhead == nil) {
				t.Errorf("got %+v", pod.Spec)
			}
		})
	}
}

func TestNodeRestriction(t *testing.T) {
	onNode := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u"},
			Spec: corev1.PodSpec{NodeName: node}}
	}
	p, _ := connect(t, newNodeRestriction(), onNode("mine", "n1"), onNode("other", "n2"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n-uid"}})
	p.SetAuthorizer(authorizerfactory.NewAlwaysDenyAuthorizer())
	self := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1",
				Labels: map[string]string{"kubernetes.io/hostname": "n1", "team": "x"}}}
		if change != nil {
			change(n)
		}
		return n
	}
	mirror := func(change func(*corev1.Pod)) *corev1.Pod {
		m := onNode("static", "n1")
		m.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		m.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n-uid", Controller: ptr.To(true)}}
		if change != nil {
			change(m)
		}
		return m
	}
	token := func(pod, uid string, audiences ...string) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences:      audiences,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: "u"},
		}}
	}
	withToken := onNode("with-token", "n1")
	withToken.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: tokenSource()}}}
	if _, err := p.client.CoreV1().Pods("ns").Create(context.Background(), withToken,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	label := func(key string) *corev1.Node { return node(func(n *corev1.Node) { n.Labels[key] = "v" }) }
	const update, del = admission.Update, admission.Delete
	for name, tt := range map[string]struct {
		req request
		err string
	}{
		"not_a_node": {
			request{user: &user.DefaultInfo{Name: "anna"}, resource: "nodes", name: "n2", obj: node(nil)}, ""},
		"nameless_node": {
			request{user: &user.DefaultInfo{Name: "x", Groups: self.Groups}, resource: "nodes", name: "n1"}, `could not determine node from user "x"`},
		"register":       {request{resource: "nodes", name: "n1", obj: node(nil)}, ""},
		"register_other": {request{resource: "nodes", name: "n2", obj: node(nil)}, `node "n1" is not allowed to modify node "n2"`},
		"register_label": {request{resource: "nodes", name: "n1", obj: label("x.node-restriction.kubernetes.io/a")}, `node "n1" is not allowed to set the following labels: x.node-restriction.kubernetes.io/a`},
		"register_range": {
			request{resource: "nodes", name: "n1",
				obj: node(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.0.0.0/17"} })}, `node "n1" is not allowed to set podCIDR and podCIDRs`},
		"own_range": {
			request{resource: "nodes", name: "n1", operation: update,
				obj: node(func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/17" }), old: node(nil)}, `node "n1" is not allowed to modify podCIDR and podCIDRs`},
		"own_label": {
			request{resource: "nodes", name: "n1", operation: update, obj: label("example.com/a"), old: node(nil)}, ""},
		"kubelet_label": {
			request{resource: "nodes", name: "n1", operation: update,
				obj: label("node.kubernetes.io/a"), old: node(nil)}, ""},
		"kubernetes_label": {
			request{resource: "nodes", name: "n1", operation: update, obj: label("foo.k8s.io/a"), old: node(nil)}, "is not allowed to modify labels: foo.k8s.io/a"},
		"taint": {
			request{resource: "nodes", name: "n1", operation: update,
				obj: node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}} }), old: node(nil)}, `node "n1" is not allowed to modify taints`},
		"mirror":           {request{resource: "pods", obj: mirror(nil)}, ""},
		"mirror_not":       {request{resource: "pods", obj: onNode("x", "n1")}, "can only create mirror pods"},
		"mirror_elsewhere": {request{resource: "pods", obj: mirror(func(p *corev1.Pod) { p.Spec.NodeName = "n2" })}, "can only create pods with spec.nodeName set to itself"},
		"mirror_unowned":   {request{resource: "pods", obj: mirror(func(p *corev1.Pod) { p.OwnerReferences = nil })}, "can only create pods with an owner reference set to itself"},
		"mirror_old_owner": {
			request{resource: "pods", obj: mirror(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "y" })}, "node n1 UID mismatch: expected y got n-uid"},
		"mirror_secret": {
			request{resource: "pods",
				obj: mirror(func(p *corev1.Pod) {
					p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
				})}, "can not create pods that reference secrets"},
		"mirror_token": {
			request{resource: "pods", obj: mirror(func(p *corev1.Pod) { p.Spec.Volumes = withToken.Spec.Volumes })}, "can not create pods that reference configmaps"},
		"delete_own":   {request{resource: "pods", name: "mine", operation: del}, ""},
		"delete_other": {request{resource: "pods", name: "other", operation: del}, `node "n1" can only delete pods with spec.nodeName set to itself`},
		"delete_gone":  {request{resource: "pods", name: "gone", operation: del}, `pods "gone" not found`},
		"status_own": {
			request{resource: "pods/status", name: "mine", operation: update, obj: onNode("mine", "n1"),
				old: onNode("mine", "n1")}, ""},
		"status_other": {
			request{resource: "pods/status", name: "other", operation: update, obj: onNode("other", "n2"),
				old: onNode("other", "n2")}, "can only update pod status for pods with spec.nodeName set to itself"},
		"status_label": {
			request{resource: "pods/status", name: "mine", operation: update,
				obj: mirror(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), old: onNode("mine", "n1")},
			"cannot update labels through pod status"},
		"evict_own":   {request{resource: "pods/eviction", name: "mine", obj: &policyv1.Eviction{}}, ""},
		"evict_other": {request{resource: "pods/eviction", name: "other", obj: &policyv1.Eviction{}}, "node n1 can only evict pods with spec.nodeName set to itself"},
		"exec":        {request{resource: "pods/exec", name: "mine"}, `unexpected pod subresource "exec", only 'status' and 'eviction' are allowed`},
		"lease": {
			request{resource: "leases", group: "coordination.k8s.io", namespace: "kube-node-lease", obj: lease("n1")}, ""},
		"lease_other": {
			request{resource: "leases", group: "coordination.k8s.io", namespace: "kube-node-lease", obj: lease("n2")}, "can only access node lease with the same name as the requesting node"},
		"token": {request{resource: "serviceaccounts/token", name: "sa", obj: token("with-token", "u")}, ""},
		"token_audience": {
			request{resource: "serviceaccounts/token", name: "sa", obj: token("with-token", "u", "vault")}, `audience "vault" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience`},
		"token_other_node": {request{resource: "serviceaccounts/token", name: "sa", obj: token("other", "u")}, "node requested token bound to a pod scheduled on a different node"},
		"token_unbound": {
			request{resource: "serviceaccounts/token", name: "sa", obj: &authenticationv1.TokenRequest{}}, "node requested token not bound to a pod"},
		"token_no_such_pod": {request{resource: "serviceaccounts/token", name: "sa", obj: token("gone", "u")}, `pods "gone" not found`},
		"claim_not_status":  {request{resource: "persistentvolumeclaims", name: "c", operation: update}, "may only update PVC status"},
		"something_else":    {request{resource: "events", obj: &corev1.Event{}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.req.user == nil {
				tt.req.user = self
			}
			if tt.req.namespace == "" && !strings.HasPrefix(tt.req.resource, "nodes") {
				tt.req.namespace = "ns"
			}
			check(t, admit(p, tt.req), tt.err)
		})
	}
}

func TestLimitRanger(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	p, _ := connect(t, newLimitRanger(),
		&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
				{Type: corev1.LimitTypeContainer, DefaultRequest: list("100m"), Default: list("200m"), Min: list("50m"),
					Max: list("1"), MaxLimitRequestRatio: list("4")},
				{Type: corev1.LimitTypePod, Max: list("1500m")},
				{Type: corev1.LimitTypePersistentVolumeClaim,
					Max: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}}},
	)
	sized := func(request, limit string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = nil
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: list(request), Limits: list(limit)}
			}
		}
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		err    string
	}{
		"defaults": {nil, ""},
		"too_low":  {sized("10m", "40m"), "minimum cpu usage per Container is 50m, but request is 10m"},
		"too_high": {sized("500m", "1100m"), "maximum cpu usage per Container is 1, but limit is 1100m"},
		"ratio":    {sized("100m", "500m"), "cpu max limit to request ratio per Container is 4, but provided ratio is 5.000000"},
		"pod":      {sized("800m", "900m"), "maximum cpu usage per Pod is 1500m, but limit is 1800m"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(tt.change)
			check(t, admitPod(p, pod), tt.err)
			want := "LimitRanger plugin set: cpu request for container a; cpu limit for container a; cpu request for container b; cpu limit for container b; cpu request for init container init; cpu limit for init container init"
			if got := pod.Annotations[limitRangerAnnotation]; name == "defaults" && got != want {
				t.Errorf("annotation %q", got)
			}
		})
	}
	claim := &corev1.PersistentVolumeClaim{
		Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
		}}}
	err := admit(p, request{resource: "persistentvolumeclaims", namespace: "ns", obj: claim})
	check(t, err, "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi")
	check(t, admit(p, request{resource: "persistentvolumeclaims", namespace: "other", obj: claim}), "")
}

// TestTaintNodes covers NODE-48: a new node takes no pods before it is Ready.
func TestTaintNodes(t *testing.T) {
	node := &corev1.Node{}
	for range 2 {
		check(t, admit(newTaintNodes(), request{resource: "nodes", obj: node}), "")
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady ||
		node.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("got taints %v", node.Spec.Taints)
	}
}
