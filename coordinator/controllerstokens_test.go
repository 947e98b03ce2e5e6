package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// systemNamespace makes a namespace that other tests may have made.
func (c *rig) systemNamespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func isGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("still there, %w", err)
}

func (c *rig) testTokenSecret(t *testing.T) { // SEC-43, SEC-44
	ns := c.namespace(t, "token-secret")
	accounts, secrets := c.client.CoreV1().ServiceAccounts(ns), c.client.CoreV1().Secrets(ns)
	sa, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "key", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"},
		},
		Type: corev1.SecretTypeServiceAccountToken, StringData: map[string]string{"extra": "bar"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "token", func() error {
		s, err := secrets.Get(t.Context(), "key", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if string(s.Data["token"]) != "robot's" || string(s.Data["ca.crt"]) != "CA" ||
			string(s.Data["namespace"]) != ns || string(s.Data["extra"]) != "bar" ||
			s.Annotations[corev1.ServiceAccountUIDKey] != string(sa.UID) {
			return fmt.Errorf("%v %s", s.Annotations, s.Data)
		}
		return nil
	})
	if err := accounts.Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "token gone with its account", func() error {
		_, err := secrets.Get(t.Context(), "key", metav1.GetOptions{})
		return isGone(err)
	})
}

func (c *rig) testBootstrapToken(t *testing.T) { // SEC-57
	c.systemNamespace(t, metav1.NamespaceSystem)
	c.systemNamespace(t, metav1.NamespacePublic)
	info, err := c.client.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "content"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	signed := func(want bool) func() error {
		return func() error {
			m, err := c.client.CoreV1().ConfigMaps(info.Namespace).Get(t.Context(), info.Name, metav1.GetOptions{})
			if err == nil && (m.Data["jws-kubeconfig-abcdef"] != "") != want {
				err = fmt.Errorf("data %v", m.Data)
			}
			return err
		}
	}
	secrets := c.client.CoreV1().Secrets(metav1.NamespaceSystem)
	token, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true",
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "signature", signed(true))
	token.Data["expiration"] = []byte(time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	if _, err := secrets.Update(t.Context(), token, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "expired token gone", func() error {
		_, err := secrets.Get(t.Context(), token.Name, metav1.GetOptions{})
		return isGone(err)
	})
	within(t, "no signature", signed(false))
}

func (c *rig) testPolicyStatus(t *testing.T) {
	policies := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	if _, err := policies.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"},
						},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{
				{Expression: "object.spec.replicas < 5"}, {Expression: "object.spec.replicaz < 5"},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = policies.Delete(context.Background(), "few", metav1.DeleteOptions{}) }()
	within(t, "type checking", func() error {
		p, err := policies.Get(t.Context(), "few", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.ObservedGeneration != p.Generation || p.Status.TypeChecking == nil {
			return fmt.Errorf("status %+v", p.Status)
		}
		found := p.Status.TypeChecking.ExpressionWarnings
		if len(found) != 1 || found[0].FieldRef != "spec.validations[1].expression" ||
			!strings.Contains(found[0].Warning, "apps/v1, Kind=Deployment: ") ||
			!strings.Contains(found[0].Warning, "undefined field 'replicaz'") {
			return fmt.Errorf("warnings %+v", found)
		}
		return nil
	})
}

func (c *rig) testNodeTTL(t *testing.T) {
	c.node(t, "annotated")
	defer func() {
		_ = c.client.CoreV1().Nodes().Delete(context.Background(), "annotated", metav1.DeleteOptions{})
	}()
	within(t, "annotation", func() error {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "annotated", metav1.GetOptions{})
		if err == nil && n.Annotations[corev1.ObjectTTLAnnotationKey] != "0" {
			err = fmt.Errorf("annotations %v", n.Annotations)
		}
		return err
	})
}

func (c *rig) testNodeRanges(t *testing.T) { // NODE-36, DS-3
	c.node(t, "ranged")
	defer func() {
		_ = c.client.CoreV1().Nodes().Delete(context.Background(), "ranged", metav1.DeleteOptions{})
	}()
	within(t, "a block of each range", func() error {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "ranged", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := n.Spec.PodCIDRs; len(got) != 2 || got[0] != n.Spec.PodCIDR ||
			!strings.HasPrefix(got[0], "10.244.") || !strings.HasPrefix(got[1], "fd00:244:0:") {
			return fmt.Errorf("podCIDR %s, podCIDRs %v", n.Spec.PodCIDR, got)
		}
		return nil
	})
}

func (c *rig) testResourceClaim(t *testing.T) {
	ns := c.namespace(t, "resource-claim")
	name, pods, claims := "gpu", c.client.CoreV1().Pods(ns), c.client.ResourceV1().ResourceClaims(ns)
	if _, err := c.client.ResourceV1().ResourceClaimTemplates(ns).Create(t.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.example.com"}},
			}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	spec := template("web", "one").Spec
	spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: &name}}
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var made string
	within(t, "claim of the template", func() error {
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := p.Status.ResourceClaimStatuses; len(s) == 1 && s[0].Name == "device" && s[0].ResourceClaimName != nil {
			made = *s[0].ResourceClaimName
			return nil
		}
		return fmt.Errorf("status %v", p.Status.ResourceClaimStatuses)
	})
	claim, err := claims.Get(t.Context(), made, metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(claim, pod) || !strings.HasPrefix(made, "p-device-") ||
		len(claim.Spec.Devices.Requests) != 1 || claim.Annotations[resourcev1.PodResourceClaimAnnotation] != "device" {
		t.Fatalf("claim %+v, %v", claim, err)
	}
	within(t, "pod over", func() error {
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Status.Phase, p.Status.Conditions = corev1.PodSucceeded, nil
		_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		return err
	})
	within(t, "claim gone before its pod", func() error {
		_, err := claims.Get(t.Context(), made, metav1.GetOptions{})
		return isGone(err)
	})
}

func (c *rig) testIdentityLease(t *testing.T) { // LSE-7
	c.systemNamespace(t, metav1.NamespaceSystem)
	leases := c.client.CoordinationV1().Leases(metav1.NamespaceSystem)
	lease := func(name string, renewed time.Time) {
		if _, err := leases.Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &name,
				LeaseDurationSeconds: ptr.To[int32](3600),
				RenewTime:            &metav1.MicroTime{Time: renewed},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lease("apiserver-alive", time.Now())
	lease("apiserver-dead", time.Now().Add(-2*time.Hour))
	within(t, "Lease of a server that is no more gone", func() error {
		_, err := leases.Get(t.Context(), "apiserver-dead", metav1.GetOptions{})
		return isGone(err)
	})
	if _, err := leases.Get(t.Context(), "apiserver-alive", metav1.GetOptions{}); err != nil {
		t.Errorf("Lease of a server that lives: %v", err)
	}
}

func (c *rig) testStaleDisruption(t *testing.T) { // DIS-19
	ns := c.namespace(t, "stale-disruption")
	pods := c.client.CoreV1().Pods(ns)
	if _, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: template("web", "one").Spec,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "mark", func() error {
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.Conditions) == 0 { // who runs it here writes all of them once
			return errors.New("not ready yet")
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
			LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		})
		_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		return err
	})
	within(t, "mark taken off", func() error {
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", p.Status.Conditions)
	})
}
