package main

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// testAutoscaler: DEP-40, RS-25, RES-16. A Deployment comes within the bounds of its
// autoscaler; without nodes to ask, that says what it lacks, in a condition and in
// events.
func (c *rig) testAutoscaler(t *testing.T) {
	ns := c.namespace(t, "autoscaler")
	deployments := c.client.AppsV1().Deployments(ns)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector("web"),
			Template: template("web", "one")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	autoscalers := c.client.AutoscalingV2().HorizontalPodAutoscalers(ns)
	_, err = autoscalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas: 2,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	condition := func(kind autoscalingv2.HorizontalPodAutoscalerConditionType, reason, message string) error {
		got, err := autoscalers.Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range got.Status.Conditions {
			if cond.Type == kind && cond.Reason == reason && cond.Message == message {
				return nil
			}
		}
		return fmt.Errorf("status %+v", got.Status)
	}
	within(t, "two replicas", func() error {
		d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (*d.Spec.Replicas != 2 || d.Status.ReadyReplicas != 2) {
			err = fmt.Errorf("replicas %d, status %+v", *d.Spec.Replicas, d.Status)
		}
		return err
	})
	within(t, "it says so", func() error {
		return condition(autoscalingv2.AbleToScale, "SucceededRescale",
			"the HPA controller was able to update the target scale to 2")
	})
	// Any change of it brings the next look at once.
	if _, err := autoscalers.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"maxReplicas":5}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "it says what it lacks", func() error {
		return condition(autoscalingv2.ScalingActive, "FailedGetResourceMetric",
			"the HPA was unable to compute the replica count: failed to get cpu utilization: "+
				"unable to get metrics for resource cpu: no metrics returned from resource metrics API")
	})
	within(t, "events", func() error {
		seen := map[string]bool{}
		events, err := c.client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "HorizontalPodAutoscaler" && e.Source.Component == "horizontal-pod-autoscaler" {
				seen[e.Type+" "+e.Reason] = true
			}
		}
		for _, want := range []string{corev1.EventTypeNormal + " SuccessfulRescale",
			corev1.EventTypeWarning + " FailedGetResourceMetric", corev1.EventTypeWarning + " FailedComputeMetricsReplicas"} {
			if !seen[want] {
				return fmt.Errorf("no event %s in %v", want, seen)
			}
		}
		return nil
	})
}
