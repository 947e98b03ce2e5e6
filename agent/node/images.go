package node

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxNames is how many names of an image the Node tells.
const maxNames = 5

// Images is the API's form of the runtime's images, the largest first, at most
// limit of them (all when limit is negative).
func Images(list []*criv1.Image, limit int) []corev1.ContainerImage {
	slices.SortFunc(list, func(a, b *criv1.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Id, b.Id))
	})
	var out []corev1.ContainerImage
	for _, im := range list {
		if limit >= 0 && len(out) >= limit {
			break
		}
		names := append(append([]string(nil), im.RepoDigests...), im.RepoTags...)
		if len(names) == 0 {
			continue
		}
		if len(names) > maxNames {
			names = names[:maxNames]
		}
		out = append(out, corev1.ContainerImage{Names: names, SizeBytes: int64(im.Size)})
	}
	return out
}
