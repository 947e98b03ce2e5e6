package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Causes of refused resizes.
const (
	causeNodeCapacity        metav1.CauseType = "NodeCapacity"
	causeUnsupportedPlatform metav1.CauseType = "UnsupportedPlatform"
)

// nodeReader is what the plugins share that look at a pod's node.
type nodeReader struct {
	*admission.Handler
	nodes corelisters.NodeLister
}

// SetExternalKubeInformerFactory takes the informer of nodes.
func (r *nodeReader) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	r.nodes = f.Core().V1().Nodes().Lister()
	r.SetReadyFunc(f.Core().V1().Nodes().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (r *nodeReader) ValidateInitialization() error {
	if r.nodes == nil {
		return fmt.Errorf("no informers")
	}
	return nil
}

// node is the node of a pod, or the refusal for want of it.
func (r *nodeReader) node(a admission.Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := r.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil, admission.NewForbidden(a, fmt.Errorf("node %q not found", pod.Spec.NodeName))
	}
	if err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("failed to get node %q: %w", pod.Spec.NodeName, err))
	}
	return node, nil
}

// podResize refuses resizes in place (KEP-1287) that the pod's node could never make.
type podResize struct{ nodeReader }

func newPodResize() *podResize {
	return &podResize{nodeReader{Handler: admission.NewHandler(admission.Update)}}
}

// Validate compares what a pod on a node asks for with what the node has for pods.
func (p *podResize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") || a.GetSubresource() != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, was := a.GetOldObject().(*corev1.Pod)
	if !ok || !was || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	node, err := p.node(a, pod)
	if err != nil {
		return err
	}
	if system := node.Labels[corev1.LabelOSStable]; system != "" && system != string(corev1.Linux) {
		return refuseResize(a, causeUnsupportedPlatform,
			fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, system))
	}
	if err := exceeds(pod, node.Status.Allocatable); err != nil {
		return refuseResize(a, causeNodeCapacity, err)
	}
	return nil
}

func refuseResize(a admission.Attributes, cause metav1.CauseType, err error) error {
	refused := admission.NewForbidden(a, err)
	if status := new(apierrors.StatusError); errors.As(refused, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
		return status
	}
	return refused
}

// exceeds tells of what a pod asks for more than there could be.
func exceeds(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	asked := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	cpu, memory := asked[corev1.ResourceCPU], asked[corev1.ResourceMemory]
	var lacks []string
	if has := allocatable.Cpu(); cpu.Cmp(*has) > 0 {
		lacks = append(lacks, fmt.Sprintf("cpu, requested: %d, allocatable: %d", cpu.MilliValue(), has.MilliValue()))
	}
	if has := allocatable.Memory(); memory.Cmp(*has) > 0 {
		lacks = append(lacks, fmt.Sprintf("memory, requested: %d, allocatable: %d", memory.Value(), has.Value()))
	}
	if len(lacks) > 0 {
		return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(lacks, "; "))
	}
	return nil
}
