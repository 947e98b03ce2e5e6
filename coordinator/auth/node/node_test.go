package node

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

const noRelation = "no relationship found between node 'n1' and this object"

func TestAuthorize(t *testing.T) {
	a := connect(t, cluster()...)
	type request struct{ verb, group, resource, sub, namespace, name, selector string }
	for name, tt := range map[string]struct {
		req    request
		allow  bool
		reason string
	}{
		"secret_env":          {request{"get", "", "secrets", "", "ns", "env", ""}, true, ""},
		"secret_watch":        {request{"watch", "", "secrets", "", "ns", "env", ""}, true, ""},
		"secret_volume":       {request{"get", "", "secrets", "", "ns", "vol", ""}, true, ""},
		"secret_pull":         {request{"get", "", "secrets", "", "ns", "pull", ""}, true, ""},
		"secret_of_volume":    {request{"get", "", "secrets", "", "storage", "stage", ""}, true, ""},
		"secret_other_node":   {request{"get", "", "secrets", "", "ns", "other", ""}, false, noRelation},
		"secret_other_ns":     {request{"get", "", "secrets", "", "ns2", "env", ""}, false, noRelation},
		"secret_unbound":      {request{"get", "", "secrets", "", "ns", "unbound", ""}, false, noRelation},
		"secret_of_mirror":    {request{"get", "", "secrets", "", "ns", "mirror", ""}, false, noRelation},
		"secret_list_all":     {request{"list", "", "secrets", "", "", "", ""}, false, "can only read namespaced object of this type"},
		"secret_list_ns":      {request{"list", "", "secrets", "", "ns", "", ""}, false, "No Object name found"},
		"secret_write":        {request{"update", "", "secrets", "", "ns", "env", ""}, false, "can only read resources of this type"},
		"configmap":           {request{"get", "", "configmaps", "", "ns", "cm", ""}, true, ""},
		"configmap_projected": {request{"get", "", "configmaps", "", "ns", "kube-root-ca.crt", ""}, true, ""},
		"claim":               {request{"get", "", "persistentvolumeclaims", "", "ns", "data", ""}, true, ""},
		"claim_ephemeral":     {request{"get", "", "persistentvolumeclaims", "", "ns", "p-scratch", ""}, true, ""},
		"claim_status":        {request{"patch", "", "persistentvolumeclaims", "status", "ns", "data", ""}, true, ""},
		"claim_list":          {request{"list", "", "persistentvolumeclaims", "", "ns", "", ""}, false, "can only get individual resources of this type"},
		"volume":              {request{"get", "", "persistentvolumes", "", "", "pv", ""}, true, ""},
		"volume_other":        {request{"get", "", "persistentvolumes", "", "", "pv2", ""}, false, noRelation},
		"attachment":          {request{"get", "storage.k8s.io", "volumeattachments", "", "", "va", ""}, true, ""},
		"attachment_other": {request{"get", "storage.k8s.io", "volumeattachments", "", "", "va2", ""},
			false, noRelation},
		"token":          {request{"create", "", "serviceaccounts", "token", "ns", "sa", ""}, true, ""},
		"token_other":    {request{"create", "", "serviceaccounts", "token", "ns", "sa2", ""}, false, noRelation},
		"account_get":    {request{"get", "", "serviceaccounts", "", "ns", "sa", ""}, true, ""},
		"account_create": {request{"create", "", "serviceaccounts", "", "ns", "sa", ""}, false, "can only create token subresource of serviceaccount"},
		"lease_own": {request{"update", "coordination.k8s.io", "leases", "", "kube-node-lease", "n1", ""},
			true, ""},
		"lease_other": {request{"update", "coordination.k8s.io", "leases", "", "kube-node-lease", "n2", ""},
			false, "can only access node lease with the same name as the requesting node"},
		"lease_namespace": {request{"get", "coordination.k8s.io", "leases", "", "kube-system", "n1", ""}, false, `can only access leases in the "kube-node-lease" system namespace`},
		"lease_list":      {request{"list", "coordination.k8s.io", "leases", "", "kube-node-lease", "", ""}, false, "can only get, create, update, patch, or delete a node lease"},
		"csinode":         {request{"patch", "storage.k8s.io", "csinodes", "", "", "n1", ""}, true, ""},
		"csinode_other":   {request{"patch", "storage.k8s.io", "csinodes", "", "", "n2", ""}, false, "can only access CSINode with the same name as the requesting node"},
		"slice_own":       {request{"update", "resource.k8s.io", "resourceslices", "", "", "s1", ""}, true, ""},
		"slice_other": {request{"update", "resource.k8s.io", "resourceslices", "", "", "s2", ""},
			false, noRelation},
		"slice_list": {request{"list", "resource.k8s.io", "resourceslices", "", "", "", "spec.nodeName=n1"},
			true, ""},
		"node_own":      {request{"get", "", "nodes", "", "", "n1", ""}, true, ""},
		"node_other":    {request{"get", "", "nodes", "", "", "n2", ""}, false, "node 'n1' cannot read 'n2', only its own Node object"},
		"node_list":     {request{"list", "", "nodes", "", "", "", ""}, false, "node 'n1' cannot read all nodes, only its own Node object"},
		"node_status":   {request{"patch", "", "nodes", "status", "", "n1", ""}, true, ""},
		"node_delete":   {request{"delete", "", "nodes", "", "", "n1", ""}, false, ""},
		"pod_own":       {request{"get", "", "pods", "", "ns", "p", ""}, true, ""},
		"pod_other":     {request{"get", "", "pods", "", "ns", "far", ""}, false, noRelation},
		"pods_own":      {request{"watch", "", "pods", "", "", "", "spec.nodeName=n1"}, true, ""},
		"pods_all":      {request{"watch", "", "pods", "", "", "", ""}, false, "can only list/watch pods with spec.nodeName field selector"},
		"pods_of_other": {request{"watch", "", "pods", "", "", "", "spec.nodeName=n2"}, false, "can only list/watch pods with spec.nodeName field selector"},
		"pod_status":    {request{"patch", "", "pods", "status", "ns", "p", ""}, true, ""},
		"pod_exec":      {request{"create", "", "pods", "exec", "ns", "p", ""}, false, ""},
		"services":      {request{"list", "", "services", "", "", "", ""}, true, ""},
		"deployments":   {request{"list", "apps", "deployments", "", "", "", ""}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			attrs := authorizer.AttributesRecord{
				User:            &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}},
				ResourceRequest: true,
				Verb:            tt.req.verb, APIGroup: tt.req.group, Resource: tt.req.resource, Subresource: tt.req.sub,
				Namespace: tt.req.namespace, Name: tt.req.name,
			}
			if tt.req.selector != "" {
				attrs.FieldSelectorRequirements = fields.ParseSelectorOrDie(tt.req.selector).Requirements()
			}
			decision, reason, err := a.Authorize(context.Background(), attrs)
			if err != nil || (decision == authorizer.DecisionAllow) != tt.allow || reason != tt.reason {
				t.Errorf("got %v %q %v, want %t %q", decision, reason, err, tt.allow, tt.reason)
			}
		})
	}
}

func TestAuthorizeWho(t *testing.T) {
	a := connect(t)
	for name, tt := range map[string]struct {
		user   user.DefaultInfo
		reason string
	}{
		"user":    {user.DefaultInfo{Name: "system:node:n1"}, ""},
		"no_name": {user.DefaultInfo{Name: "kubelet", Groups: []string{user.NodesGroup}}, `unknown node for user "kubelet"`},
	} {
		t.Run(name, func(t *testing.T) {
			decision, reason, _ := a.Authorize(context.Background(), authorizer.AttributesRecord{
				User: &tt.user, Verb: "list", Resource: "services", ResourceRequest: true,
			})
			if decision != authorizer.DecisionNoOpinion || reason != tt.reason {
				t.Errorf("got %v %q", decision, reason)
			}
		})
	}
}

func cluster() []runtime.Object {
	meta := func(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }
	withEnv := func(secret string) []corev1.Container {
		return []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}},
		}}}}}
	}
	mirror := meta("ns", "mirror")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	pv := func(name, claim string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: meta("", name), Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodeStageSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "stage"},
			}},
		}}
	}
	return []runtime.Object{
		&corev1.Pod{ObjectMeta: meta("ns", "p"), Spec: corev1.PodSpec{
			NodeName: "n1", ServiceAccountName: "sa", Containers: withEnv("env"),
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
			Volumes: []corev1.Volume{
				{Name: "a", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "vol"}}},
				{Name: "b",
					VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
				{Name: "c",
					VolumeSource: corev1.VolumeSource{
						Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
							{ConfigMap: &corev1.ConfigMapProjection{
								LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
						}}}},
				{Name: "d",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			},
		}},
		&corev1.Pod{ObjectMeta: meta("ns", "far"),
			Spec: corev1.PodSpec{NodeName: "n2", ServiceAccountName: "sa2", Containers: withEnv("other")}},
		&corev1.Pod{ObjectMeta: meta("ns", "new"), Spec: corev1.PodSpec{Containers: withEnv("unbound")}},
		&corev1.Pod{ObjectMeta: mirror, Spec: corev1.PodSpec{NodeName: "n1", Containers: withEnv("mirror")}},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("ns", "data"),
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
		pv("pv", "data"), pv("pv2", "unused"),
		&storagev1.VolumeAttachment{ObjectMeta: meta("", "va"), Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
		&storagev1.VolumeAttachment{ObjectMeta: meta("", "va2"), Spec: storagev1.VolumeAttachmentSpec{NodeName: "n2"}},
		&resourcev1.ResourceSlice{ObjectMeta: meta("", "s1"), Spec: resourcev1.ResourceSliceSpec{NodeName: ptr.To("n1")}},
		&resourcev1.ResourceSlice{ObjectMeta: meta("", "s2"), Spec: resourcev1.ResourceSliceSpec{NodeName: ptr.To("n2")}},
	}
}

// connect returns an authorizer whose static rules allow listing services.
func connect(t *testing.T, objects ...runtime.Object) *Authorizer {
	t.Helper()
	client := fake.NewClientset(objects...)
	a := New(Config{
		Rules: []rbacv1.PolicyRule{{}},
		Allows: func(attrs authorizer.Attributes, _ []rbacv1.PolicyRule) bool {
			return attrs.GetResource() == "services" && attrs.GetVerb() == "list"
		},
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	if err := a.Connect(client, factory); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	return a
}
