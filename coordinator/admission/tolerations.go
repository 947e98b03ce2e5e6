package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// Annotations of a namespace: what pods tolerate by default, and what they may.
const (
	defaultTolerations = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerations = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// tolerationLimits is Configuration of podtolerationrestriction.admission.k8s.io/v1alpha1:
// what counts in namespaces that say nothing.
type tolerationLimits struct {
	metav1.TypeMeta `json:",inline"`
	Default         []corev1.Toleration `json:"default,omitempty"`
	Whitelist       []corev1.Toleration `json:"whitelist,omitempty"`
}

// tolerationRestriction gives pods their namespace's tolerations, and all but those of the
// class BestEffort the one of memory pressure (TNT-26); others than the namespace allows
// are refused.
type tolerationRestriction struct {
	*admission.Handler
	namespaces
	limits tolerationLimits
}

func newTolerationRestriction(config io.Reader) (admission.Interface, error) {
	r := &tolerationRestriction{Handler: admission.NewHandler(admission.Create, admission.Update)}
	r.handler = r.Handler
	if config == nil {
		return r, nil
	}
	data, err := io.ReadAll(config)
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(data, &r.limits); err != nil {
		return nil, err
	}
	const version = "podtolerationrestriction.admission.k8s.io/v1alpha1"
	if c := r.limits; c.APIVersion != version || c.Kind != "Configuration" {
		return nil, fmt.Errorf("it holds %s %s, give a Configuration of %s", c.APIVersion, c.Kind, version)
	}
	return r, nil
}

// namespaces finds those that pods are made in.
type namespaces struct {
	handler *admission.Handler
	lister  corelisters.NamespaceLister
	client  kubernetes.Interface
}

// SetExternalKubeClientSet takes the client that asks for namespaces that are new.
func (n *namespaces) SetExternalKubeClientSet(c kubernetes.Interface) { n.client = c }

// SetExternalKubeInformerFactory takes the informer of namespaces.
func (n *namespaces) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	n.lister = f.Core().V1().Namespaces().Lister()
	n.handler.SetReadyFunc(f.Core().V1().Namespaces().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (n *namespaces) ValidateInitialization() error {
	if n.lister == nil || n.client == nil {
		return fmt.Errorf("no informers or no client")
	}
	return nil
}

// get returns a namespace, which may be so new that the informer has not got it.
func (n *namespaces) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := n.lister.Get(name)
	if apierrors.IsNotFound(err) {
		ns, err = n.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	return ns, err
}

// tolerationsOf reads an annotation of a namespace: nil when it has none, which is not the
// same as an empty one.
func (r *tolerationRestriction) tolerationsOf(ctx context.Context, a admission.Attributes,
	annotation string) ([]corev1.Toleration, error) {
	ns, err := r.get(ctx, a.GetNamespace())
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	out := []corev1.Toleration{}
	if text == "" {
		return out, nil
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, forbid(a, "annotation %s of namespace %s is no list of tolerations: %v", annotation, ns.Name, err)
	}
	return out, nil
}

// Admit adds tolerations.
func (r *tolerationRestriction) Admit(ctx context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	list := pod.Spec.Tolerations
	if a.GetOperation() == admission.Create {
		given, err := r.tolerationsOf(ctx, a, defaultTolerations)
		if err != nil {
			return err
		}
		if given == nil {
			given = r.limits.Default
		}
		list = mergeTolerations(given, list)
	}
	// An update must not lose a toleration, also where the added one covers it.
	pressure := corev1.Toleration{Key: corev1.TaintNodeMemoryPressure,
		Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	has := slices.ContainsFunc(list, func(by corev1.Toleration) bool { return covers(&by, &pressure) })
	if podspec.QOS(&pod.Spec) != corev1.PodQOSBestEffort && !has {
		list = append(list, pressure)
	}
	if len(list) > 0 {
		pod.Spec.Tolerations = list
	}
	return nil
}

// Validate refuses tolerations that are not allowed.
func (r *tolerationRestriction) Validate(ctx context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, err := r.tolerationsOf(ctx, a, allowedTolerations)
	if err != nil {
		return err
	}
	scope := "namespace"
	if allowed == nil {
		allowed, scope = r.limits.Whitelist, "cluster"
	}
	if len(allowed) == 0 {
		return nil
	}
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if !slices.ContainsFunc(allowed, func(by corev1.Toleration) bool { return covers(&by, t) }) {
			const text = "pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist"
			return forbid(a, text, scope)
		}
	}
	return nil
}

// mergeTolerations leaves out what another covers, of the same the second.
func mergeTolerations(first, second []corev1.Toleration) []corev1.Toleration {
	all := slices.Concat(first, second)
	var out []corev1.Toleration
	for i := range all {
		covered := slices.ContainsFunc(out, func(by corev1.Toleration) bool { return covers(&by, &all[i]) })
		for j := i + 1; j < len(all) && !covered; j++ {
			covered = !equality.Semantic.DeepEqual(all[i], all[j]) && covers(&all[j], &all[i])
		}
		if !covered {
			out = append(out, all[i])
		}
	}
	return out
}

// covers tells whether all that t tolerates is tolerated by another, too.
func covers(by, t *corev1.Toleration) bool {
	if equality.Semantic.DeepEqual(by, t) {
		return true
	}
	everyKey := by.Key == "" && by.Operator == corev1.TolerationOpExists
	if by.Key != t.Key && !everyKey || by.Effect != "" && by.Effect != t.Effect {
		return false
	}
	if by.Effect == corev1.TaintEffectNoExecute && by.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *by.TolerationSeconds) {
		return false
	}
	switch by.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return (t.Operator == corev1.TolerationOpEqual || t.Operator == "") && t.Value == by.Value
	}
	return false
}

// extendedToleration has pods tolerate taints that are named as the extended resources that
// they ask for: nodes with such devices are kept for them (TNT-27).
type extendedToleration struct{ *admission.Handler }

func newExtendedToleration() extendedToleration {
	return extendedToleration{admission.NewHandler(admission.Create, admission.Update)}
}

// Admit adds the tolerations.
func (extendedToleration) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	var names []string
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if podspec.IsExtended(name) {
					names = append(names, string(name))
				}
			}
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		t := corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists}
		same := func(has corev1.Toleration) bool { return has.MatchToleration(&t) }
		if !slices.ContainsFunc(pod.Spec.Tolerations, same) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return nil
}

// hardAntiAffinity refuses pods that must be apart from others by more than the node: one of
// them keeps a whole zone from others (ASG-21).
type hardAntiAffinity struct{ *admission.Handler }

func newHardAntiAffinity() hardAntiAffinity {
	return hardAntiAffinity{admission.NewHandler(admission.Create, admission.Update)}
}

// Validate implements admission.ValidationInterface.
func (hardAntiAffinity) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return forbid(a,
				"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed",
				term.TopologyKey, corev1.LabelHostname)
		}
	}
	return nil
}
