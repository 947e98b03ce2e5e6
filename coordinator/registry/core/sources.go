package core

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// countSources counts the members of the union that are set.
func countSources(s *corev1.PersistentVolumeSource) int {
	v, n := reflect.ValueOf(s).Elem(), 0
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			n++
		}
	}
	return n
}
