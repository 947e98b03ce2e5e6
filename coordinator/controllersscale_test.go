package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
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
	withinTime(t, time.Minute, "two replicas", func() error {
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
	withinTime(t, time.Minute, "it says what it lacks", func() error {
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

// podUsage answers for the kubelets: each running container uses a tenth of a core
// and 100 MiB.
type podUsage struct {
	client kubernetes.Interface
	begin  time.Time
}

func (u *podUsage) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/stats/summary" {
		return nil, errors.New("not served here: " + r.URL.Path)
	}
	pods, err := u.client.CoreV1().Pods("").List(r.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName!="})
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	cpu := statsapi.CPUStats{Time: now, UsageCoreNanoSeconds: ptr.To(uint64(now.Sub(u.begin)) / 10)}
	memory := statsapi.MemoryStats{Time: now, WorkingSetBytes: ptr.To[uint64](100 << 20)}
	told := statsapi.Summary{Node: statsapi.NodeStats{CPU: &cpu, Memory: &memory}}
	for _, p := range pods.Items {
		told.Pods = append(told.Pods, statsapi.PodStats{
			PodRef:     statsapi.PodReference{Name: p.Name, Namespace: p.Namespace, UID: string(p.UID)},
			Containers: []statsapi.ContainerStats{{Name: p.Spec.Containers[0].Name, CPU: &cpu, Memory: &memory}},
		})
	}
	body, err := json.Marshal(told)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(body)))}, err
}

// testAutoscalerOfUse goes all the way: what a node's kubelet tells, through the
// metrics API, to more replicas.
func (c *rig) testAutoscalerOfUse(t *testing.T) {
	ns := c.namespace(t, "use")
	_, err := c.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "measured"},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := template("web", "one")
	pods.Spec.NodeName = "measured"
	deployments := c.client.AppsV1().Deployments(ns)
	_, err = deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: selector("web"), Template: pods},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "two pods", func() error {
		d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas != 2 {
			err = fmt.Errorf("status %+v", d.Status)
		}
		return err
	})
	measured := func() error {
		got, err := c.client.Discovery().RESTClient().Get().
			AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces", ns, "pods").Do(t.Context()).Raw()
		if n := strings.Count(string(got), `"memory":"100Mi"`); err == nil && n != 2 {
			err = fmt.Errorf("metrics of %d pods: %s", n, got)
		}
		return err
	}
	// Before the autoscaler comes, so that its first look has all. On a busy machine an
	// answer can be late: the node is asked again after 10 s, the next look is at 15 s.
	withinTime(t, time.Minute, "metrics of two pods", measured)
	_, err = c.client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
				MaxReplicas: 10,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
					Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceMemory,
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
							AverageValue: ptr.To(resource.MustParse("50Mi"))}}}},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	withinTime(t, time.Minute, "twice as many", func() error {
		d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && *d.Spec.Replicas != 4 {
			err = fmt.Errorf("replicas %d", *d.Spec.Replicas)
		}
		return err
	})
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.CoreV1().Nodes().Delete(t.Context(), "measured", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
