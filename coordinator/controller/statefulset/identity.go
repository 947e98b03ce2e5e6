package statefulset

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// parse splits a pod's name into that of its set and its ordinal.
func parse(pod string) (set string, ordinal int, ok bool) {
	i := strings.LastIndexByte(pod, '-')
	if i < 0 || strings.Trim(pod[i+1:], "0123456789") != "" {
		return "", 0, false
	}
	n, err := strconv.ParseInt(pod[i+1:], 10, 32)
	return pod[:i], int(n), err == nil
}

func isMember(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	parent, n, ok := parse(pod.Name)
	return ok && parent == set.Name && pod.Name == podName(set, n)
}

func ordinalOf(pod *corev1.Pod) int {
	_, n, _ := parse(pod.Name)
	return n
}

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return fmt.Sprintf("%s-%d", set.Name, ordinal)
}

// ordinals are the first one and how many there are to be.
func ordinals(set *appsv1.StatefulSet) (start, count int) {
	if set.Spec.Ordinals != nil {
		start = int(set.Spec.Ordinals.Start)
	}
	return start, int(ptr.Deref(set.Spec.Replicas, 1))
}

// wanted tells whether the set is to have a pod of this ordinal.
func wanted(set *appsv1.StatefulSet, ordinal int) bool {
	start, count := ordinals(set)
	return ordinal >= start && ordinal < start+count
}

// newPod makes the pod of an ordinal from a revision's template.
func newPod(set *appsv1.StatefulSet, template *corev1.PodTemplateSpec, revision string, ordinal int) *corev1.Pod {
	pod := controller.NewPod(template, set, metav1.NewControllerRef(set, ownKind))
	pod.Name = podName(set, ordinal)
	identify(pod)
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	mountClaims(set, pod)
	return pod
}

// identify sets the labels that tell a pod's name and ordinal.
func identify(pod *corev1.Pod) {
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, strconv.Itoa(ordinalOf(pod)))
}

func isIdentified(pod *corev1.Pod) bool {
	return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name
}

func claimName(set *appsv1.StatefulSet, template string, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template, set.Name, ordinal)
}

// mountClaims gives the pod a volume for each claim template, in place of one
// of the same name.
func mountClaims(set *appsv1.StatefulSet, pod *corev1.Pod) {
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return
	}
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		if claimed[name] {
			continue
		}
		claimed[name] = true
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: claimName(set, name, ordinalOf(pod))},
		}})
	}
	for _, v := range pod.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}

// mountsClaims tells whether the pod's volumes are those of its claims.
func mountsClaims(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	mounted := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			mounted[v.Name] = v.PersistentVolumeClaim.ClaimName
		}
	}
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		if mounted[name] != claimName(set, name, ordinalOf(pod)) {
			return false
		}
	}
	return true
}

// newClaims makes the claims of a pod, with the set's selector as labels.
func newClaims(set *appsv1.StatefulSet, pod *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		c := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = claimName(set, c.Name, ordinalOf(pod)), set.Namespace
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		c.OwnerReferences = claimOwners(c, set, pod)
		out = append(out, c)
	}
	return out
}
