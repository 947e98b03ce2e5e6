package volume

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// hugePages tells whether a medium is one of huge pages.
func hugePages(m corev1.StorageMedium) bool {
	return m == corev1.StorageMediumHugePages || strings.HasPrefix(string(m), string(corev1.StorageMediumHugePagesPrefix))
}

// pageSize is that of a medium, HugePages or HugePages-SIZE, in bytes: the one that the
// pod's containers ask for, of which there is one where the medium names none.
func pageSize(p *corev1.Pod, m corev1.StorageMedium) (int64, error) {
	asked := map[int64]bool{}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if err := askedPages(asked, list[i].Resources.Requests); err != nil {
				return 0, err
			}
		}
	}
	if r := p.Spec.Resources; r != nil {
		if err := askedPages(asked, r.Requests); err != nil {
			return 0, err
		}
	}
	if named, ok := strings.CutPrefix(string(m), string(corev1.StorageMediumHugePagesPrefix)); ok {
		size, err := resource.ParseQuantity(named)
		if err != nil {
			return 0, fmt.Errorf("medium %s: %w", m, err)
		}
		if !asked[size.Value()] {
			return 0, fmt.Errorf("%w: no container asks for %s%s", errNoPages(m), corev1.ResourceHugePagesPrefix, named)
		}
		return size.Value(), nil
	}
	if len(asked) == 0 {
		return 0, errNoPages(m)
	}
	if len(asked) > 1 {
		return 0, fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes: "+
			"name one, as in %s2Mi", m, corev1.StorageMediumHugePagesPrefix)
	}
	for size := range asked {
		return size, nil
	}
	return 0, nil
}

// errNoPages is told of volumes that nobody may use, in the kubelet's words.
func errNoPages(m corev1.StorageMedium) error {
	return fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", m)
}

func askedPages(asked map[int64]bool, requests corev1.ResourceList) error {
	for name := range requests {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(size)
		if err != nil {
			return fmt.Errorf("resource %s: %w", name, err)
		}
		asked[q.Value()] = true
	}
	return nil
}
