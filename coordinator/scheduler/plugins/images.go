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
)

func (imageLocality) Name() string { return ImageLocalityName }

func (imageLocality) Sign(key []byte, pod *framework.PodInfo, snap *framework.Snapshot) ([]byte, bool) {
	names, containers := podImages(pod, snap)
	key = signInt(signInt(key, int64(containers)), int64(len(names)))
	for _, n := range names {
		key = signString(key, n)
	}
	return key, true
}

func (imageLocality) PreScore(pod *framework.PodInfo, snap *framework.Snapshot) (framework.Scorer, *framework.Status) {
	names, containers := podImages(pod, snap)
	if len(names) == 0 {
		return nil, nil
	}
	return &imageScore{names: names, containers: containers, snap: snap}, nil
}

// podImages lists the images that some node has; others cannot matter.
func podImages(pod *framework.PodInfo, snap *framework.Snapshot) (names []string, containers int) {
	add := func(image string) {
		if image = framework.NormalizeImage(image); snap.ImageNodes(image) > 0 {
			names = append(names, image)
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
	return names, len(pod.Pod.Spec.InitContainers) + len(pod.Pod.Spec.Containers)
}

// imageScore keeps the image sizes a node; the spread over nodes changes with
// every pull, so the score is worked out in each cycle.
type imageScore struct {
	names      []string
	containers int
	snap       *framework.Snapshot
	sizes      [][]int64 // by image, by slot
}

func (s *imageScore) Track(slot int, n *framework.NodeInfo) {
	if s.sizes == nil {
		s.sizes = make([][]int64, len(s.names))
	}
	for i, name := range s.names {
		s.sizes[i] = grow(s.sizes[i], slot, 0)
		s.sizes[i][slot] = 0
		if n != nil {
			s.sizes[i][slot] = n.Images[name]
		}
	}
}

func (s *imageScore) Scores(slots []int32, out []int64) {
	clear(out)
	total := float64(s.snap.Len())
	for i, name := range s.names {
		spread := float64(s.snap.ImageNodes(name)) / total
		for j, slot := range slots {
			out[j] += int64(float64(s.sizes[i][slot]) * spread)
		}
	}
	top := imageCeiling * int64(s.containers)
	for j, sum := range out {
		out[j] = framework.MaxScore * (min(max(sum, imageFloor), top) - imageFloor) / (top - imageFloor)
	}
}

// grow makes room for a slot in an array by slot.
func grow[T any](a []T, slot int, empty T) []T {
	for len(a) <= slot {
		a = append(a, empty)
	}
	return a
}
