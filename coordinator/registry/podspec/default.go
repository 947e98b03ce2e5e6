package podspec

import (
	"reflect"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

// DefaultTemplate fills unset fields of a template's spec. It is idempotent.
func DefaultTemplate(t *corev1.PodTemplateSpec) {
	dropInitContainers(t.Annotations)
	Default(&t.Spec)
}

// Default fills the unset fields that a pod spec has everywhere, in a pod or in
// a template. What only a pod gets is DefaultPod's. It is idempotent.
func Default(s *corev1.PodSpec) {
	fieldrule.DefaultEmpty(&s.DNSPolicy, corev1.DNSClusterFirst)
	fieldrule.DefaultEmpty(&s.RestartPolicy, corev1.RestartPolicyAlways)
	fieldrule.DefaultEmpty(&s.SchedulerName, corev1.DefaultSchedulerName)
	fieldrule.DefaultEmpty(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
	fieldrule.Default(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	for i := range s.Volumes {
		DefaultVolume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		defaultContainer((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	RoundResources(s.Overhead)
	if s.Resources != nil {
		defaultRequirements(s.Resources)
	}
}

// DefaultPod fills what only a pod gets, never a template: requests from
// limits, enableServiceLinks, host ports of a host network pod. A negative grace
// period becomes 1.
func DefaultPod(p *corev1.Pod) {
	s := &p.Spec
	dropInitContainers(p.Annotations)
	Default(s)
	if *s.TerminationGracePeriodSeconds < 0 {
		s.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range list {
			requestsFromLimits(&list[i].Resources)
			if s.HostNetwork {
				hostPorts(list[i].Ports)
			}
		}
	}
	defaultPodResources(p)
	fieldrule.Default(&s.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
}

func hostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		if ports[i].HostPort == 0 {
			ports[i].HostPort = ports[i].ContainerPort
		}
	}
}

func requestsFromLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; !set {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// defaultPodResources completes pod level resources (KEP-2837): huge page
// limits from the containers, then requests from the containers or the limits.
func defaultPodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	for name, q := range resourcehelper.AggregateContainerLimits(p, resourcehelper.PodResourcesOptions{}) {
		_, limited := r.Limits[name]
		_, requested := r.Requests[name]
		if isHugePage(name) && resourcehelper.IsSupportedPodLevelResource(name) && !limited && !requested {
			r.Limits = with(r.Limits, name, q)
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	for name, q := range resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{}) {
		if _, set := r.Requests[name]; !set && overcommits(name) && resourcehelper.IsSupportedPodLevelResource(name) {
			r.Requests = with(r.Requests, name, q)
		}
	}
	for name, q := range r.Limits {
		if _, set := r.Requests[name]; !set && resourcehelper.IsSupportedPodLevelResource(name) {
			r.Requests = with(r.Requests, name, q)
		}
	}
}

func defaultContainer(c *corev1.Container) {
	fieldrule.DefaultEmpty(&c.ImagePullPolicy, PullPolicy(c.Image))
	fieldrule.DefaultEmpty(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	fieldrule.DefaultEmpty(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		fieldrule.DefaultEmpty(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		defaultEnv(c.Env[i].ValueFrom)
	}
	defaultRequirements(&c.Resources)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

func defaultEnv(v *corev1.EnvVarSource) {
	if v == nil {
		return
	}
	if v.FieldRef != nil {
		fieldrule.DefaultEmpty(&v.FieldRef.APIVersion, "v1")
	}
	if v.FileKeyRef != nil {
		fieldrule.Default(&v.FileKeyRef.Optional, false)
	}
}

func defaultRequirements(r *corev1.ResourceRequirements) {
	RoundResources(r.Limits)
	RoundResources(r.Requests)
}

// RoundResources rounds quantities up to a thousandth, the finest the API keeps.
func RoundResources(list corev1.ResourceList) {
	for name, q := range list {
		if q.RoundUp(-3) {
			continue
		}
		list[name] = q
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	fieldrule.DefaultEmpty(&p.TimeoutSeconds, 1)
	fieldrule.DefaultEmpty(&p.PeriodSeconds, 10)
	fieldrule.DefaultEmpty(&p.SuccessThreshold, 1)
	fieldrule.DefaultEmpty(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		fieldrule.Default(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h != nil {
		fieldrule.DefaultEmpty(&h.Path, "/")
		fieldrule.DefaultEmpty(&h.Scheme, corev1.URISchemeHTTP)
	}
}

// DefaultVolume fills the unset fields of a volume; one without a source
// becomes an emptyDir.
func DefaultVolume(v *corev1.Volume) {
	s := &v.VolumeSource
	if reflect.ValueOf(*s).IsZero() {
		s.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if s.Secret != nil {
		fieldrule.Default(&s.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s.ConfigMap != nil {
		fieldrule.Default(&s.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s.DownwardAPI != nil {
		fieldrule.Default(&s.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownward(s.DownwardAPI.Items)
	}
	if s.Projected != nil {
		defaultProjected(s.Projected)
	}
	if s.HostPath != nil {
		fieldrule.Default(&s.HostPath.Type, corev1.HostPathUnset)
	}
	if s.Image != nil {
		fieldrule.DefaultEmpty(&s.Image.PullPolicy, PullPolicy(s.Image.Reference))
	}
	if s.Ephemeral != nil && s.Ephemeral.VolumeClaimTemplate != nil {
		DefaultClaim(&s.Ephemeral.VolumeClaimTemplate.Spec)
	}
	defaultLegacyVolume(s)
}

// defaultLegacyVolume: sources that old drivers had before CSI.
func defaultLegacyVolume(s *corev1.VolumeSource) {
	if s.ISCSI != nil {
		fieldrule.DefaultEmpty(&s.ISCSI.ISCSIInterface, "default")
	}
	if s.RBD != nil {
		fieldrule.DefaultEmpty(&s.RBD.RBDPool, "rbd")
		fieldrule.DefaultEmpty(&s.RBD.RadosUser, "admin")
		fieldrule.DefaultEmpty(&s.RBD.Keyring, "/etc/ceph/keyring")
	}
	if s.AzureDisk != nil {
		fieldrule.Default(&s.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		fieldrule.Default(&s.AzureDisk.FSType, "ext4")
		fieldrule.Default(&s.AzureDisk.ReadOnly, false)
		fieldrule.Default(&s.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	}
	if s.ScaleIO != nil {
		fieldrule.DefaultEmpty(&s.ScaleIO.StorageMode, "ThinProvisioned")
		fieldrule.DefaultEmpty(&s.ScaleIO.FSType, "xfs")
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	fieldrule.Default(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		if d := p.Sources[i].DownwardAPI; d != nil {
			defaultDownward(d.Items)
		}
		if t := p.Sources[i].ServiceAccountToken; t != nil {
			fieldrule.Default(&t.ExpirationSeconds, int64(3600))
		}
	}
}

func defaultDownward(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		if f := items[i].FieldRef; f != nil {
			fieldrule.DefaultEmpty(&f.APIVersion, "v1")
		}
	}
}

// DefaultClaim fills unset fields of a claim's spec.
func DefaultClaim(s *corev1.PersistentVolumeClaimSpec) {
	fieldrule.Default(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	RoundResources(s.Resources.Limits)
	RoundResources(s.Resources.Requests)
}

// PullPolicy is the default imagePullPolicy: Always for the tag "latest", which
// an image with neither tag nor digest has too. What is no image name is
// IfNotPresent.
func PullPolicy(image string) corev1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent
	}
	if tagged, ok := reference.TagNameOnly(named).(reference.Tagged); ok && tagged.Tag() == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func with(list corev1.ResourceList, name corev1.ResourceName, q quantity) corev1.ResourceList {
	if list == nil {
		list = corev1.ResourceList{}
	}
	list[name] = q.DeepCopy()
	return list
}
