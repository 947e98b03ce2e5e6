package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings tells what is allowed but likely a mistake, in upstream's words. p
// is the path of the template; nil for a pod.
func Warnings(meta *metav1.ObjectMeta, s *corev1.PodSpec, p *field.Path) []string {
	w := &warnings{meta: p.Child("metadata", "annotations"), spec: p.Child("spec")}
	w.nodes(s)
	w.annotations(meta.Annotations)
	for i := range s.Volumes {
		w.volume(&s.Volumes[i].VolumeSource, w.spec.Child("volumes").Index(i))
	}
	for i := range s.Volumes {
		w.list = append(w.list, overlaps(&s.Volumes[i])...)
	}
	hosts := duplicates[string]{}
	for i, a := range s.HostAliases {
		if hosts.seen(a.IP) {
			w.add(w.spec.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
		}
	}
	secrets := duplicates[string]{}
	for i, r := range s.ImagePullSecrets {
		at := w.spec.Child("imagePullSecrets").Index(i).Child("name")
		if secrets.seen(r.Name) {
			w.add(at, "duplicate name %q", r.Name)
		}
	}
	for i, r := range s.ImagePullSecrets {
		if r.Name == "" {
			w.add(w.spec.Child("imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", r.Name)
		}
	}
	w.fractions(s.Overhead, w.spec.Child("overhead"))
	w.profiles(meta.Annotations, s, p != nil)
	ports, names := map[string][]shownPort{}, map[string]*field.Path{}
	Visit(s, w.spec, func(c *corev1.Container, at *field.Path) {
		w.fractions(c.Resources.Limits, at.Child("resources", "limits"))
		w.fractions(c.Resources.Requests, at.Child("resources", "requests"))
		w.env(c.Env, at.Child("env"))
		w.ports(c.Ports, ports, names, at.Child("ports"))
	})
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		w.add(w.spec.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	w.affinity(s.Affinity)
	w.addresses(s)
	return w.list
}

// TemplateWarnings are the Warnings of a pod template at p.
func TemplateWarnings(t *corev1.PodTemplateSpec, p *field.Path) []string {
	return Warnings(&t.ObjectMeta, &t.Spec, p)
}

// OwnerNameWarnings tells of a name that makes bad names of the owner's pods.
func OwnerNameWarnings(name string) []string {
	msgs := validation.IsDNS1123Label(name)
	if len(msgs) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in "+
		"surprising behavior; a DNS label is recommended: %v", msgs)}
}

type warnings struct {
	list []string
	meta *field.Path // of the annotations
	spec *field.Path
}

func (w *warnings) add(p *field.Path, format string, args ...any) {
	w.list = append(w.list, p.String()+": "+fmt.Sprintf(format, args...))
}

// duplicates remembers values; seen tells whether one comes again.
type duplicates[T comparable] map[T]bool

func (d duplicates[T]) seen(v T) bool {
	again := d[v]
	d[v] = true
	return again
}

func (w *warnings) annotations(a map[string]string) {
	for _, d := range []struct{ key, message string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, ok := a[d.key]; ok {
			w.add(w.meta.Key(d.key), "%s", d.message)
		}
	}
}

// profiles warns of annotations that name a seccomp or AppArmor profile where the
// field does not. Those for AppArmor still count for a pod; AdoptAppArmor reports them.
func (w *warnings) profiles(a map[string]string, s *corev1.PodSpec, template bool) {
	const seccomp = `non-functional in v1.27+; use the "seccompProfile" field instead`
	c := s.SecurityContext
	if _, ok := a[corev1.SeccompPodAnnotationKey]; ok && (c == nil || c.SeccompProfile == nil) {
		w.add(w.meta.Key(corev1.SeccompPodAnnotationKey), seccomp)
	}
	Visit(s, w.spec, func(c *corev1.Container, _ *field.Path) {
		key := corev1.SeccompContainerAnnotationKeyPrefix + c.Name
		if _, ok := a[key]; ok && (c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil) {
			w.add(w.meta.Key(key), seccomp)
		}
		key = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		noted, ok := a[key]
		if !template || !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		if of := podAppArmor(s); of == nil || !equality.Semantic.DeepEqual(of, appArmorOf(noted)) {
			w.add(w.meta.Key(key), appArmorDeprecated)
		}
	})
}

// nodes warns of node labels that have a better name, and of spread constraints
// that select nothing.
func (w *warnings) nodes(s *corev1.PodSpec) {
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		if message, ok := DeprecatedNodeLabel(key); ok {
			w.add(w.spec.Child("nodeSelector").Key(key), "%s", message)
		}
	}
	if s.Affinity != nil && s.Affinity.NodeAffinity != nil {
		a, at := s.Affinity.NodeAffinity, w.spec.Child("affinity", "nodeAffinity")
		if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i := range r.NodeSelectorTerms {
				w.list = append(w.list, NodeTermWarnings(&r.NodeSelectorTerms[i], false,
					at.Child(requiredNow, "nodeSelectorTerms").Index(i))...)
			}
		}
		preferred := a.PreferredDuringSchedulingIgnoredDuringExecution
		for i := range preferred {
			w.list = append(w.list,
				NodeTermWarnings(&preferred[i].Preference, true, at.Child(preferredNow).Index(i).Child("preference"))...)
		}
	}
	for i, c := range s.TopologySpreadConstraints {
		at := w.spec.Child("topologySpreadConstraints").Index(i)
		if message, ok := DeprecatedNodeLabel(c.TopologyKey); ok {
			w.add(at.Child("topologyKey"), "%s is %s", c.TopologyKey, message)
		}
		if c.LabelSelector == nil {
			w.add(at.Child("labelSelector"), selectsNothing)
		}
	}
}

const selectsNothing = "a null labelSelector results in matching no pod"

func (w *warnings) affinity(a *corev1.Affinity) {
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path) {
		for i := range required {
			if required[i].LabelSelector == nil {
				w.add(p.Child(requiredNow).Index(i).Child("labelSelector"), selectsNothing)
			}
		}
		for i := range preferred {
			if preferred[i].PodAffinityTerm.LabelSelector == nil {
				w.add(p.Child(preferredNow).Index(i).Child("podAffinityTerm", "labelSelector"), selectsNothing)
			}
		}
	}
	if a == nil {
		return
	}
	if a := a.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			w.spec.Child("affinity", "podAffinity"))
	}
	if a := a.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			w.spec.Child("affinity", "podAntiAffinity"))
	}
}

// addresses warns of IP addresses that are not in their usual form.
func (w *warnings) addresses(s *corev1.PodSpec) {
	if s.DNSConfig != nil {
		for i, server := range s.DNSConfig.Nameservers {
			w.list = append(w.list,
				validation.GetWarningsForIP(w.spec.Child("dnsConfig", "nameservers").Index(i), server)...)
		}
	}
	for i := range s.HostAliases {
		w.list = append(w.list,
			validation.GetWarningsForIP(w.spec.Child("hostAliases").Index(i).Child("ip"), s.HostAliases[i].IP)...)
	}
}

const fractional = "fractional byte value %q is invalid, must be an integer"

func (w *warnings) fractions(list corev1.ResourceList, p *field.Path) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := list[name]; ok && q.MilliValue()%1000 != 0 {
			w.add(p.Key(string(name)), fractional, q.String())
		}
	}
}

func (w *warnings) env(vars []corev1.EnvVar, p *field.Path) {
	names := duplicates[string]{}
	for i, v := range vars {
		reference := "$(" + v.Name + ")"
		extends := v.ValueFrom == nil && v.Value != reference && strings.Contains(v.Value, reference)
		if names.seen(v.Name) && !extends {
			w.add(p.Index(i), "hides previous definition of %q, which may be dropped when using apply", v.Name)
		}
	}
}

type shownPort struct {
	at   *field.Path
	port *corev1.ContainerPort
}

func (w *warnings) ports(list []corev1.ContainerPort, known map[string][]shownPort,
	names map[string]*field.Path, p *field.Path) {
	for i := range list {
		port, at := &list[i], p.Index(i)
		if port.HostIP != "" && port.HostPort == 0 {
			w.add(at, "hostIP set without hostPort: %+v", *port)
		}
		key := fmt.Sprintf("%d/%s", port.ContainerPort, port.Protocol)
		for _, o := range known[key] {
			switch {
			case port.HostIP == o.port.HostIP && port.HostPort == o.port.HostPort:
				w.add(at, "duplicate port definition with %s", o.at)
			case port.HostPort == 0 || o.port.HostPort == 0:
				w.add(at, "overlapping port definition with %s", o.at)
			case port.HostPort == o.port.HostPort && (port.HostIP == "") != (o.port.HostIP == ""):
				w.add(at, "dangerously ambiguous port definition with %s", o.at)
			}
		}
		known[key] = append(known[key], shownPort{at, port})
		if other := names[port.Name]; port.Name != "" && other != nil {
			w.add(at,
				"duplicate port name %q with %s, services and probes that select ports by name will use %s", port.Name,
				other, other)
		} else if port.Name != "" {
			names[port.Name] = at
		}
	}
}
