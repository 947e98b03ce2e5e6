package node

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/ptr"
)

// volumesOf is a cluster in which pod p of a node claims a volume of each kind that
// names secrets: claim, volume and kind have one name.
func volumesOf(node string) []runtime.Object {
	ref := func(namespace, name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: namespace, Name: name}
	}
	sources := map[string]corev1.PersistentVolumeSource{
		"csi": {CSI: &corev1.CSIPersistentVolumeSource{
			NodeStageSecretRef: ref("storage", "stage"), NodePublishSecretRef: ref("storage", "publish"),
			NodeExpandSecretRef: ref("storage", "expand"), ControllerPublishSecretRef: ref("storage", "attach"),
			ControllerExpandSecretRef: ref("storage", "grow"),
		}},
		"iscsi":  {ISCSI: &corev1.ISCSIPersistentVolumeSource{SecretRef: ref("", "iscsi")}},
		"rbd":    {RBD: &corev1.RBDPersistentVolumeSource{SecretRef: ref("storage", "rbd")}},
		"flex":   {FlexVolume: &corev1.FlexPersistentVolumeSource{SecretRef: ref("", "flex")}},
		"cinder": {Cinder: &corev1.CinderPersistentVolumeSource{SecretRef: ref("storage", "cinder")}},
		"azure":  {AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure"}},
		"azure2": {AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure", SecretNamespace: ptr.To("storage")}},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: node}}
	out := []runtime.Object{pod}
	for name, source := range sources {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		out = append(out,
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name}},
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: name}, PersistentVolumeSource: source}})
	}
	// A volume that says to be for the pod's claim, which is bound to another; and one
	// that nobody has.
	for name, claim := range map[string]*corev1.ObjectReference{"stray": {Namespace: "ns", Name: "csi"}, "free": nil} {
		out = append(out, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: claim, PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: ref("storage", name)}}}})
	}
	return append(out,
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"},
			Spec: storagev1.VolumeAttachmentSpec{NodeName: node}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}})
}

// TestAuthorizeVolumes is what a node may do with the volumes of its pods; who has its
// certificate may do no more, and another node none of it.
func TestAuthorizeVolumes(t *testing.T) {
	const core, storage = "", "storage.k8s.io"
	type request struct{ verb, group, resource, sub, namespace, name string }
	for name, tt := range map[string]struct {
		req   request
		allow bool
	}{
		"stage":                {request{"get", core, "secrets", "", "storage", "stage"}, true},
		"publish":              {request{"get", core, "secrets", "", "storage", "publish"}, true},
		"expand":               {request{"get", core, "secrets", "", "storage", "expand"}, true},
		"iscsi":                {request{"get", core, "secrets", "", "ns", "iscsi"}, true},
		"rbd":                  {request{"get", core, "secrets", "", "storage", "rbd"}, true},
		"flex":                 {request{"get", core, "secrets", "", "ns", "flex"}, true},
		"cinder":               {request{"get", core, "secrets", "", "storage", "cinder"}, true},
		"azure":                {request{"get", core, "secrets", "", "ns", "azure"}, true},
		"azure_namespace":      {request{"get", core, "secrets", "", "storage", "azure"}, true},
		"attach":               {request{"get", core, "secrets", "", "storage", "attach"}, false},
		"controller_expand":    {request{"get", core, "secrets", "", "storage", "grow"}, false},
		"other_namespace":      {request{"get", core, "secrets", "", "ns", "stage"}, false},
		"stray":                {request{"get", core, "secrets", "", "storage", "stray"}, false},
		"free":                 {request{"get", core, "secrets", "", "storage", "free"}, false},
		"secret_write":         {request{"patch", core, "secrets", "", "storage", "stage"}, false},
		"volume":               {request{"get", core, "persistentvolumes", "", "", "csi"}, true},
		"volume_free":          {request{"get", core, "persistentvolumes", "", "", "free"}, false},
		"volume_update":        {request{"update", core, "persistentvolumes", "", "", "csi"}, false},
		"volume_status":        {request{"update", core, "persistentvolumes", "status", "", "csi"}, false},
		"volume_delete":        {request{"delete", core, "persistentvolumes", "", "", "csi"}, false},
		"volume_list":          {request{"list", core, "persistentvolumes", "", "", ""}, false},
		"claim":                {request{"get", core, "persistentvolumeclaims", "", "ns", "csi"}, true},
		"claim_status":         {request{"patch", core, "persistentvolumeclaims", "status", "ns", "csi"}, true},
		"claim_other":          {request{"patch", core, "persistentvolumeclaims", "status", "ns", "x"}, false},
		"claim_update":         {request{"update", core, "persistentvolumeclaims", "", "ns", "csi"}, false},
		"claim_delete":         {request{"delete", core, "persistentvolumeclaims", "", "ns", "csi"}, false},
		"claim_watch":          {request{"watch", core, "persistentvolumeclaims", "", "ns", ""}, false},
		"attachment":           {request{"get", storage, "volumeattachments", "", "", "va"}, true},
		"attachment_list":      {request{"list", storage, "volumeattachments", "", "", ""}, false},
		"attachment_create":    {request{"create", storage, "volumeattachments", "", "", ""}, false},
		"attachment_delete":    {request{"delete", storage, "volumeattachments", "", "", "va"}, false},
		"attachment_status":    {request{"patch", storage, "volumeattachments", "status", "", "va"}, false},
		"csinode_list":         {request{"list", storage, "csinodes", "", "", ""}, false},
		"class_write":          {request{"update", storage, "storageclasses", "", "", "x"}, false},
		"class_delete":         {request{"delete", storage, "storageclasses", "", "", "x"}, false},
		"attributes_class_put": {request{"update", storage, "volumeattributesclasses", "", "", "x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for node, allow := range map[string]bool{"n1": tt.allow, "n2": false} {
				a := connect(t, volumesOf("n1")...)
				decision, reason, err := a.Authorize(context.Background(), authorizer.AttributesRecord{
					User:            &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup}},
					ResourceRequest: true,
					Verb:            tt.req.verb, APIGroup: tt.req.group, Resource: tt.req.resource,
					Subresource: tt.req.sub,
					Namespace:   tt.req.namespace, Name: tt.req.name,
				})
				if err != nil || (decision == authorizer.DecisionAllow) != allow {
					t.Errorf("%s: %v %q %v, want %t", node, decision, reason, err, allow)
				}
			}
		})
	}
}
