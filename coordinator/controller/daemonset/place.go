package daemonset

import (
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const generationLabel = "pod-template-generation"

// tolerations keep daemon pods where ordinary ones may not be.
var tolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

var networkToleration = corev1.Toleration{
	Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
}

// placement tells on which nodes a DaemonSet's pods belong. It is made once for
// a reconcile.
type placement struct {
	nodeName string
	affinity nodeaffinity.RequiredNodeAffinity
	tolerate []corev1.Toleration
}

func placementOf(ds *appsv1.DaemonSet) placement {
	spec := &ds.Spec.Template.Spec
	return placement{
		nodeName: spec.NodeName,
		affinity: nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}),
		tolerate: tolerationsOf(spec),
	}
}

// tolerationsOf are the template's tolerations and those of every daemon pod, which take the
// place of the template's own: one with tolerationSeconds would let the pod be evicted.
func tolerationsOf(spec *corev1.PodSpec) []corev1.Toleration {
	of := slices.Clone(tolerations)
	if spec.HostNetwork {
		of = append(of, networkToleration)
	}
	var out []corev1.Toleration
	for i := range spec.Tolerations {
		same := func(t corev1.Toleration) bool { return t.MatchToleration(&spec.Tolerations[i]) }
		if !slices.ContainsFunc(of, same) {
			out = append(out, spec.Tolerations[i])
		}
	}
	return append(out, of...)
}

// on tells whether a pod is to be started on a node, and whether one that is
// there may stay: a NoSchedule taint keeps new pods away only.
func (p placement) on(node *corev1.Node) (run, stay bool) {
	if p.nodeName != "" && p.nodeName != node.Name {
		return false, false
	}
	if ok, err := p.affinity.Match(node); err != nil || !ok {
		return false, false
	}
	hinders := func(effects ...corev1.TaintEffect) bool {
		_, found := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, p.tolerate,
			func(t *corev1.Taint) bool {
				for _, e := range effects {
					if t.Effect == e {
						return true
					}
				}
				return false
			}, true)
		return found
	}
	if !hinders(corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute) {
		return true, true
	}
	return false, !hinders(corev1.TaintEffectNoExecute)
}

// newPod makes the pod for one node.
func newPod(ds *appsv1.DaemonSet, node, hash string) *corev1.Pod {
	pod := controller.NewPod(&ds.Spec.Template, ds, metav1.NewControllerRef(ds, ownKind))
	pod.Spec.Tolerations = tolerationsOf(&pod.Spec)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.ControllerRevisionHashLabelKey, hash)
	if g := templateGeneration(ds); g != nil {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, generationLabel, strconv.FormatInt(*g, 10))
	}
	pin(&pod.Spec, node)
	return pod
}

// pin replaces the required node affinity by the node's name: whether the node
// fits was decided here already.
func pin(spec *corev1.PodSpec, node string) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}
}

// target is the node that a pod is on or pinned to, "" when neither.
func target(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

func templateGeneration(ds *appsv1.DaemonSet) *int64 {
	g, err := strconv.ParseInt(ds.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return nil
	}
	return &g
}
