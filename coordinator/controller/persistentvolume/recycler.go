package persistentvolume

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Recyclers are the pods that empty volumes, by the kind of these.
type Recyclers struct{ HostPath, NFS Recycler }

// Recycler is a pod that empties volumes, and how many seconds it has for that.
type Recycler struct {
	// Template is the pod, whose first volume becomes the one to be emptied; nil:
	// upstream's.
	Template *corev1.Pod
	// Least is what it has at least, EachGiB for each GiB of the volume where that is
	// more.
	Least, EachGiB int
}

// Upstream's pod.
const (
	recyclerImage  = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6"
	recyclerScript = `test -e /scrub && find /scrub -mindepth 1 -delete && test -z "$(ls -A /scrub)" || exit 1`
)

func defaultTemplate() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Volumes:       []corev1.Volume{{Name: "vol"}},
			Containers: []corev1.Container{{
				Name: "pv-recycler", Image: recyclerImage,
				Command: []string{"/bin/sh"}, Args: []string{"-c", recyclerScript},
				VolumeMounts: []corev1.VolumeMount{{Name: "vol", MountPath: "/scrub"}},
			}},
		},
	}
}

// templateSize bounds the file of a pod, in bytes.
const templateSize = 1 << 20

// ReadTemplate reads the pod of a recycler.
func ReadTemplate(file string) (*corev1.Pod, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, templateSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > templateSize {
		return nil, fmt.Errorf("%s has more than %d bytes: give a file with one Pod", file, templateSize)
	}
	p, err := template(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

func template(text []byte) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(text, p); err != nil {
		return nil, err
	}
	switch {
	case p.APIVersion != "v1" || p.Kind != "Pod":
		return nil, fmt.Errorf("apiVersion %q and kind %q: give a Pod of v1", p.APIVersion, p.Kind)
	case len(p.Spec.Volumes) == 0:
		return nil, errors.New("spec.volumes is empty: its first is replaced by the volume to be emptied")
	case len(p.Spec.Containers) == 0:
		return nil, errors.New("spec.containers is empty: one of them empties the volume")
	}
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	return p, nil
}

// pod is the one that empties a volume.
func (r Recyclers) pod(pv *corev1.PersistentVolume) *corev1.Pod {
	how := r.HostPath
	if pv.Spec.NFS != nil {
		how = r.NFS
	}
	p := defaultTemplate()
	if how.Template != nil {
		p = how.Template.DeepCopy()
	}
	p.Name, p.GenerateName = recyclerPrefix+pv.Name, ""
	p.Spec.Volumes[0].VolumeSource = *recyclable(pv)
	p.Spec.ActiveDeadlineSeconds = ptr.To(how.limit(pv))
	return p
}

// limit is how many seconds the pod has; a pod can have no more than an int32 tells.
func (r Recycler) limit(pv *corev1.PersistentVolume) int64 {
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	gib := min(size.Value()>>30, math.MaxInt32)
	return min(max(int64(r.Least), gib*int64(r.EachGiB)), math.MaxInt32)
}
