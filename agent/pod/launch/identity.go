package launch

import (
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/quota"
)

// Labels and annotations that the CRI's users know pods and containers by. The
// worker finds its own again by those that are exported.
const (
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	AnnotationHash     = "io.kubernetes.container.hash"
	AnnotationPodGrace = "io.kubernetes.pod.terminationGracePeriod"

	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	annotationRestarts = "io.kubernetes.container.restartCount"
	annotationTermPath = "io.kubernetes.container.terminationMessagePath"
	annotationTermPol  = "io.kubernetes.container.terminationMessagePolicy"
)

// containerIdentity says which container it is, of what image, and where its
// log goes.
func containerIdentity(c *container) error {
	c.config.Metadata = &criv1.ContainerMetadata{Name: c.Container.Name, Attempt: c.Attempt}
	c.config.Image = &criv1.ImageSpec{Image: c.Image.GetId(), UserSpecifiedImage: c.Container.Image}
	c.config.LogPath = logs.Name(c.Container.Name, c.Attempt)
	c.config.Labels = podLabels(c.Pod)
	c.config.Labels[LabelContainerName] = c.Container.Name
	c.config.Annotations = map[string]string{
		AnnotationHash:     Hash(c.Container),
		annotationRestarts: strconv.Itoa(int(c.Attempt)),
		annotationTermPath: c.Container.TerminationMessagePath,
		annotationTermPol:  string(c.Container.TerminationMessagePolicy),
	}
	if limit := c.Container.Resources.Limits.StorageEphemeral(); limit.Sign() > 0 {
		c.config.Annotations[quota.AnnotationLimit] = strconv.FormatInt(limit.Value(), 10)
	}
	if c.Host.LogMaxBytes > 0 {
		c.config.Annotations[logs.AnnotationMax] = strconv.FormatInt(c.Host.LogMaxBytes, 10)
	}
	if g := c.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
		c.config.Annotations[AnnotationPodGrace] = strconv.FormatInt(*g, 10)
	}
	return nil
}

// sandboxIdentity says which pod it is of, and where logs go.
func sandboxIdentity(s *sandbox) error {
	s.config.Metadata = &criv1.PodSandboxMetadata{
		Name:      s.Pod.Name,
		Namespace: s.Pod.Namespace,
		Uid:       string(s.Pod.UID),
		Attempt:   s.Attempt,
	}
	s.config.LogDirectory = s.Host.LogDir(s.Pod)
	s.config.Annotations = s.Pod.Annotations
	s.config.Labels = map[string]string{}
	maps.Copy(s.config.Labels, s.Pod.Labels)
	maps.Copy(s.config.Labels, podLabels(s.Pod)) // a pod's own cannot claim to be another's
	return nil
}

func podLabels(p *corev1.Pod) map[string]string {
	return map[string]string{labelPodName: p.Name, labelPodNamespace: p.Namespace, LabelPodUID: string(p.UID)}
}

// Hash identifies what of a container's spec cannot change while it runs:
// its name and image.
func Hash(c *corev1.Container) string {
	h := fnv.New32a()
	h.Write([]byte(c.Name))
	h.Write([]byte{0})
	h.Write([]byte(c.Image))
	return fmt.Sprintf("%08x", h.Sum32())
}
