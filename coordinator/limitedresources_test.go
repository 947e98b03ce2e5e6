package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
)

const limitedResources = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [cluster-services]}
`

// Pods of a limited class exist only where a quota covers the class, also in
// namespaces without any quota (RQ-30, RQ-37, RQ-39).
func TestLimitedResources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(limitedResources), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newRigWith(t, false, func(s *apiserver.Server) []apiadmission.Interface {
		plugins, err := admission.Chain(admission.Config{
			Client: s.Client(), Informers: s.Informers(),
			Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(), ConfigFile: file,
		})
		if err != nil {
			panic(err)
		}
		return plugins
	})
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "cluster-services"}, Value: 10}
	if _, err := c.client.SchedulingV1().PriorityClasses().Create(t.Context(), class,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bare, covered := c.namespace(t, "bare"), c.namespace(t, "covered")
	c.quota(t, covered,
		"services",
		corev1.ResourceQuotaSpec{Hard: hard("pods=1"),
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn,
					Values: []string{"cluster-services"}},
			}}})
	c.used(t, covered, "services", "pods=0")
	create := func(ns, name, class string) string {
		t.Helper()
		spec := template(name, "one").Spec
		spec.PriorityClassName = class
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		// The class is known to the plugin a moment after it was made, a
		// namespace's service account after the namespace.
		var last string
		within(t, "an answer about "+name, func() error {
			_, err := c.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
			last = ""
			if err != nil {
				if last = err.Error(); strings.Contains(last, "serviceaccount") || strings.Contains(last, "no PriorityClass") {
					return err
				}
			}
			return nil
		})
		return last
	}
	if why := create(bare, "usual", ""); why != "" {
		t.Errorf("a pod without a class: %s", why)
	}
	if why := create(bare, "limited", "cluster-services"); !strings.Contains(why, "insufficient quota to match these scopes: [{PriorityClass In [cluster-services]}]") {
		t.Errorf("without a quota: %q", why)
	}
	if why := create(covered, "first", "cluster-services"); why != "" {
		t.Errorf("within the quota: %s", why)
	}
	if why := create(covered, "second", "cluster-services"); !strings.Contains(why, "exceeded quota: services") {
		t.Errorf("beyond the quota: %q", why)
	}
}
