package plugins

import (
	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// imageLocality prefers nodes that have the pod's images already, big ones and
// widely spread ones most.
type imageLocality struct{}

const (
	imageFloor   int64 = 23 << 20   // less than this is not worth a preference
	imageCeiling int64 = 1000 << 20 // for one container
	// spreadSteps is how finely a class distinguishes on what share of the
	// nodes an image is: it is exact up to so many nodes.
	spreadSteps = 16
)

func (imageLocality) Name() string { return ImageLocalityName }

func (imageLocality) Sign(key []byte, pod *framework.PodInfo, snap *framework.Snapshot) ([]byte, bool) {
	images, containers := podImages(pod, snap)
	key = signInt(signInt(key, int64(containers)), int64(len(images)))
	for _, im := range images {
		key = signInt(signString(key, im.name), int64(im.spread*spreadSteps))
	}
	return key, true
}

func (imageLocality) PreScore(pod *framework.PodInfo, snap *framework.Snapshot) (framework.Scorer, *framework.Status) {
	images, containers := podImages(pod, snap)
	if len(images) == 0 {
		return nil, nil
	}
	return &imageScore{images: images, top: imageCeiling * int64(containers)}, nil
}

type podImage struct {
	name   string
	spread float64 // share of the nodes that have it
}

// podImages lists the images that some node has; others cannot matter.
func podImages(pod *framework.PodInfo, snap *framework.Snapshot) (images []podImage, containers int) {
	add := func(image string) {
		image = framework.NormalizeImage(image)
		if n := snap.ImageNodes(image); n > 0 {
			images = append(images, podImage{image, float64(n) / float64(snap.Len())})
		}
	}
	for i := range pod.Pod.Spec.InitContainers {
		add(pod.Pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Pod.Spec.Containers {
		add(pod.Pod.Spec.Containers[i].Image)
	}
	for i := range pod.Pod.Spec.Volumes {
		if im := pod.Pod.Spec.Volumes[i].Image; im != nil {
			add(im.Reference)
		}
	}
	return images, len(pod.Pod.Spec.InitContainers) + len(pod.Pod.Spec.Containers)
}

type imageScore struct {
	images []podImage
	top    int64
}

func (s *imageScore) Score(n *framework.NodeInfo) int64 {
	var sum int64
	for _, im := range s.images {
		sum += int64(float64(n.Images[im.name]) * im.spread)
	}
	return framework.MaxScore * (min(max(sum, imageFloor), s.top) - imageFloor) / (s.top - imageFloor)
}
