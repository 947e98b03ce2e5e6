package horizontalpodautoscaling

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// The metrics of a scenario are in a ConfigMap "metrics": under "cpu" (or
// "cpu.CONTAINER", or a custom metric's name) "POD=MILLIS …", of objects and external
// ones their values. The scale is that of a Deployment. Events are written as Events.
func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) {
		client := env.Client
		env.Recorder = func(string) record.EventRecorder { return recorder{client} }
		return New(env, Deps{Scales: deployments{client}, Metrics: configured{client}})
	})
}

type recorder struct{ client kubernetes.Interface }

func (r recorder) Event(obj runtime.Object, kind, reason, message string) {
	hpa := obj.(*autoscalingv2.HorizontalPodAutoscaler)
	_, _ = r.client.CoreV1().Events(hpa.Namespace).Create(context.Background(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: hpa.Name + ".", Namespace: hpa.Namespace},
		Type:       kind, Reason: reason, Message: message,
	}, metav1.CreateOptions{})
}

func (r recorder) Eventf(obj runtime.Object, kind, reason, format string, args ...any) {
	r.Event(obj, kind, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(obj runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(obj, kind, reason, format, args...)
}

type deployments struct{ client kubernetes.Interface }

func (d deployments) Find(ctx context.Context, namespace string,
	target autoscalingv2.CrossVersionObjectReference) (*autoscalingv1.Scale, schema.GroupResource, error) {
	resource := schema.GroupResource{Group: "apps", Resource: "deployments"}
	scale, err := d.Get(ctx, namespace, resource, target.Name)
	return scale, resource, err
}

func (d deployments) Get(ctx context.Context, namespace string, _ schema.GroupResource,
	name string) (*autoscalingv1.Scale, error) {
	found, err := d.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	selector := ""
	if found.Spec.Selector != nil {
		selector = metav1.FormatLabelSelector(found.Spec.Selector)
	}
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:   autoscalingv1.ScaleSpec{Replicas: *found.Spec.Replicas},
		Status: autoscalingv1.ScaleStatus{Replicas: found.Status.Replicas, Selector: selector}}, nil
}

func (d deployments) Update(ctx context.Context, namespace string, _ schema.GroupResource,
	scale *autoscalingv1.Scale) error {
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, scale.Spec.Replicas)
	_, err := d.client.AppsV1().Deployments(namespace).Patch(ctx, scale.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

type configured struct{ client kubernetes.Interface }

func (c configured) read(namespace, key string) (string, error) {
	found, err := c.client.CoreV1().ConfigMaps(namespace).Get(context.Background(), "metrics", metav1.GetOptions{})
	if err != nil || found.Data[key] == "" {
		return "", fmt.Errorf("no metrics returned from %s", key)
	}
	return found.Data[key], nil
}

func (c configured) ofPods(namespace, key string) (PodMetrics, error) {
	text, err := c.read(namespace, key)
	if err != nil {
		return nil, err
	}
	out := PodMetrics{}
	for _, word := range strings.Fields(text) {
		pod, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, err
		}
		out[pod] = PodMetric{Value: n, Time: time.Now(), Window: period}
	}
	return out, nil
}

func (c configured) Resource(_ context.Context, resource corev1.ResourceName, namespace string, _ labels.Selector,
	container string) (PodMetrics, error) {
	return c.ofPods(namespace, strings.Trim(string(resource)+"."+container, "."))
}

func (c configured) Pods(metric, namespace string, _, _ labels.Selector) (PodMetrics, error) {
	return c.ofPods(namespace, metric)
}

func (c configured) Object(metric, namespace string, object autoscalingv2.CrossVersionObjectReference,
	_ labels.Selector) (int64, error) {
	text, err := c.read(namespace, metric+"."+object.Kind+"."+object.Name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

func (c configured) External(metric, namespace string, _ labels.Selector) (values []int64, err error) {
	text, err := c.read(namespace, metric)
	if err != nil {
		return nil, err
	}
	for _, word := range strings.Fields(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, n)
	}
	return values, nil
}
