package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// sets reads and writes the objects that ask for pods. What get and list return
// is shared with the cache.
type sets interface {
	get(namespace, name string) (*appsv1.ReplicaSet, error)
	list(namespace string) []*appsv1.ReplicaSet
	live(ctx context.Context, namespace, name string) (metav1.Object, error)
	writeStatus(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error)
}

type replicaSets struct {
	client kubernetes.Interface
	lister appslisters.ReplicaSetLister
}

func (s replicaSets) get(namespace, name string) (*appsv1.ReplicaSet, error) {
	return s.lister.ReplicaSets(namespace).Get(name)
}

func (s replicaSets) list(namespace string) []*appsv1.ReplicaSet {
	all, _ := s.lister.ReplicaSets(namespace).List(labels.Everything())
	return all
}

func (s replicaSets) live(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return s.client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s replicaSets) writeStatus(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error) {
	return s.client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
}

var replicationKind = corev1.SchemeGroupVersion.WithKind("ReplicationController")

type replicationControllers struct {
	client kubernetes.Interface
	lister corelisters.ReplicationControllerLister
}

func (s replicationControllers) get(namespace, name string) (*appsv1.ReplicaSet, error) {
	rc, err := s.lister.ReplicationControllers(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return asSet(rc), nil
}

func (s replicationControllers) list(namespace string) []*appsv1.ReplicaSet {
	all, _ := s.lister.ReplicationControllers(namespace).List(labels.Everything())
	out := make([]*appsv1.ReplicaSet, len(all))
	for i, rc := range all {
		out[i] = asSet(rc)
	}
	return out
}

func (s replicationControllers) live(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return s.client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s replicationControllers) writeStatus(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error) {
	rc, err := s.lister.ReplicationControllers(rs.Namespace).Get(rs.Name)
	if err != nil {
		return nil, err
	}
	changed := *rc
	changed.ResourceVersion = rs.ResourceVersion
	changed.Status = replicationStatus(&rs.Status)
	return s.client.CoreV1().ReplicationControllers(rs.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
}

// asSet shows a ReplicationController as a ReplicaSet. Its kind stays, for
// events name it.
func asSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: rc.ObjectMeta}
	rs.SetGroupVersionKind(replicationKind)
	rs.Spec = appsv1.ReplicaSetSpec{Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
		Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	rs.Status = appsv1.ReplicaSetStatus{
		Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
		ReadyReplicas:     rc.Status.ReadyReplicas,
		AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		})
	}
	return rs
}

func replicationStatus(s *appsv1.ReplicaSetStatus) corev1.ReplicationControllerStatus {
	status := corev1.ReplicationControllerStatus{
		Replicas: s.Replicas, FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration,
	}
	for _, c := range s.Conditions {
		status.Conditions = append(status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return status
}
