package admission

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

// nodeSelector is the annotation of a namespace that selects the nodes of its pods.
const nodeSelector = "scheduler.alpha.kubernetes.io/node-selector"

// clusterDefault is the key of the configuration for namespaces that have none.
const clusterDefault = "clusterDefaultNodeSelector"

// podNodeSelector has the pods of a namespace run on its nodes.
type podNodeSelector struct {
	*admission.Handler
	namespaces
	// config is by namespace: what its pods may select at most, and by clusterDefault
	// what those select whose namespace says nothing.
	config map[string]labels.Set
}

func newPodNodeSelector(config io.Reader) (admission.Interface, error) {
	s := &podNodeSelector{Handler: admission.NewHandler(admission.Create), config: map[string]labels.Set{}}
	s.handler = s.Handler
	if config == nil {
		return s, nil
	}
	data, err := io.ReadAll(config)
	if err != nil {
		return nil, err
	}
	var file struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, err
	}
	for name, text := range file.Selectors {
		if s.config[name], err = labels.ConvertSelectorToLabelsMap(text); err != nil {
			return nil, fmt.Errorf("podNodeSelectorPluginConfig: %s: %w", name, err)
		}
	}
	return s, nil
}

// selector is what the namespace of a request has its pods select.
func (s *podNodeSelector) selector(ctx context.Context, a admission.Attributes) (labels.Set, error) {
	ns, err := s.get(ctx, a.GetNamespace())
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[nodeSelector]
	if !ok {
		return s.config[clusterDefault], nil
	}
	out, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, forbid(a, "annotation %s of namespace %s: %v", nodeSelector, ns.Name, err)
	}
	return out, nil
}

// Admit adds the namespace's selector.
func (s *podNodeSelector) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	of, err := s.selector(ctx, a)
	if err != nil {
		return err
	}
	if labels.Conflicts(of, pod.Spec.NodeSelector) {
		return conflict(a)
	}
	if merged := labels.Merge(of, pod.Spec.NodeSelector); len(merged) > 0 {
		pod.Spec.NodeSelector = merged
	}
	return nil
}

func conflict(a admission.Attributes) error {
	return forbid(a, "pod node label selector conflicts with its namespace node label selector")
}

// Validate refuses a pod that selects other nodes than its namespace's.
func (s *podNodeSelector) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	of, err := s.selector(ctx, a)
	if err != nil {
		return err
	}
	if labels.Conflicts(of, pod.Spec.NodeSelector) {
		return conflict(a)
	}
	return s.allowed(a, pod)
}

// allowed holds a pod's selector against what the configuration lets its namespace select;
// a namespace that it does not name may select any.
func (s *podNodeSelector) allowed(a admission.Attributes, pod *corev1.Pod) error {
	may := s.config[a.GetNamespace()]
	if len(may) == 0 {
		return nil
	}
	for key, value := range pod.Spec.NodeSelector {
		if has, ok := may[key]; !ok || has != value {
			return forbid(a, "pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}
