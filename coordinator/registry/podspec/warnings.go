package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings tells what is allowed but likely a mistake, in upstream's words. p
// is the path of the template; nil for a pod.
func Warnings(meta *metav1.ObjectMeta, s *corev1.PodSpec, p *field.Path) []string {
	w := &warnings{spec: p.Child("spec")}
	w.annotations(meta.Annotations, p.Child("metadata", "annotations"))
	w.scheduling(s)
	for i := range s.Volumes {
		w.volume(&s.Volumes[i].VolumeSource, w.spec.Child("volumes").Index(i))
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
		if r.Name == "" {
			w.add(at, "invalid empty name %q", r.Name)
		}
	}
	w.fractions(s.Overhead, w.spec.Child("overhead"))
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
	return w.list
}

type warnings struct {
	list []string
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

func (w *warnings) annotations(a map[string]string, p *field.Path) {
	for _, d := range []struct{ key, message string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, ok := a[d.key]; ok {
			w.add(p.Key(d.key), "%s", d.message)
		}
	}
}

func (w *warnings) scheduling(s *corev1.PodSpec) {
	const nothing = "a null labelSelector results in matching no pod"
	for i := range s.TopologySpreadConstraints {
		if s.TopologySpreadConstraints[i].LabelSelector == nil {
			w.add(w.spec.Child("topologySpreadConstraints").Index(i).Child("labelSelector"), nothing)
		}
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path) {
		for i := range required {
			if required[i].LabelSelector == nil {
				w.add(p.Child(requiredNow).Index(i).Child("labelSelector"), nothing)
			}
		}
		for i := range preferred {
			if preferred[i].PodAffinityTerm.LabelSelector == nil {
				w.add(p.Child(preferredNow).Index(i).Child("podAffinityTerm", "labelSelector"), nothing)
			}
		}
	}
	if s.Affinity == nil {
		return
	}
	if a := s.Affinity.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			w.spec.Child("affinity", "podAffinity"))
	}
	if a := s.Affinity.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			w.spec.Child("affinity", "podAntiAffinity"))
	}
}

func (w *warnings) volume(s *corev1.VolumeSource, p *field.Path) {
	for _, v := range []struct {
		set           bool
		name, message string
	}{
		{s.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{s.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
		{s.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{s.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
		{s.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{s.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
		{s.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{s.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{s.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if v.set {
			w.add(p.Child(v.name), "%s", v.message)
		}
	}
}

func (w *warnings) fractions(list corev1.ResourceList, p *field.Path) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := list[name]; ok && q.MilliValue()%1000 != 0 {
			w.add(p.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
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
