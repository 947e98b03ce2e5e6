package admission

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/storage/ephemeral"
)

// token lets a node ask for tokens only for pods that run on it, and only for
// audiences that they name.
func (n *nodeRestriction) token(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "token" {
		return nil
	}
	request, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	pod, err := n.podOn(ctx, node, a, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return forbid(a,
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated",
			ref.UID)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node requested token bound to a pod scheduled on a different node")
	}
	if err := n.audience(ctx, a, request.Spec.Audiences, pod); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

func (n *nodeRestriction) audience(ctx context.Context, a admission.Attributes,
	audiences []string, pod *corev1.Pod) error {
	if len(audiences) > 1 {
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	audience := ""
	if len(audiences) == 1 {
		audience = audiences[0]
	}
	if n.names(ctx, pod, audience) {
		return nil
	}
	decision, _, err := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "request-serviceaccounts-token-audience", Namespace: a.GetNamespace(),
		APIVersion: "v1", Resource: audience, Name: a.GetName(), ResourceRequest: true,
	})
	switch user := a.GetUserInfo().GetName(); {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return fmt.Errorf(
			"audience %q not found in pod spec volume, error authorizing %s to request tokens for this audience: %w",
			audience, user, err)
	default:
		return fmt.Errorf(
			"audience %q not found in pod spec volume, %s is not authorized to request tokens for this audience",
			audience, user)
	}
}

// names says whether a volume of the pod asks for tokens of the audience, itself
// or through its storage driver.
func (n *nodeRestriction) names(ctx context.Context, pod *corev1.Pod, audience string) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience {
					return true
				}
			}
		}
		driver := ""
		switch {
		case v.CSI != nil:
			driver = v.CSI.Driver
		case v.PersistentVolumeClaim != nil:
			driver = n.driverOf(ctx, pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			driver = n.driverOf(ctx, pod.Namespace, ephemeral.VolumeClaimName(pod, v))
		}
		if driver != "" && n.driverNames(ctx, driver, audience) {
			return true
		}
	}
	return false
}

func (n *nodeRestriction) driverOf(ctx context.Context, namespace, claim string) string {
	pvc, err := n.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	if err != nil || pvc.Spec.VolumeName == "" {
		return ""
	}
	pv, err := n.client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.Driver
}

func (n *nodeRestriction) driverNames(ctx context.Context, driver, audience string) bool {
	d, err := n.client.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, r := range d.Spec.TokenRequests {
		if r.Audience == audience {
			return true
		}
	}
	return false
}
