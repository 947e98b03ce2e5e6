package allocate_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// BenchmarkServiceCreate measures what allocation adds to the creation of a
// Service: one more object for its address.
func BenchmarkServiceCreate(b *testing.B) {
	s := apitest.Start(b, apitest.Options{Kinds: registry.Kinds()})
	c := s.Client()
	ensureSystem(b, c)
	var n atomic.Int64
	run := func(b *testing.B, typ corev1.ServiceType, parallel bool) {
		one := func() {
			svc := aService(fmt.Sprintf("bench-%d", n.Add(1)), func(s *corev1.ServiceSpec) { s.Type = typ })
			if _, err := c.CoreV1().Services("default").Create(ctx, svc, create); err != nil {
				b.Error(err)
			}
		}
		if !parallel {
			for b.Loop() {
				one()
			}
			return
		}
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				one()
			}
		})
	}
	b.Run("ClusterIP", func(b *testing.B) { run(b, corev1.ServiceTypeClusterIP, false) })
	b.Run("NodePort", func(b *testing.B) { run(b, corev1.ServiceTypeNodePort, false) })
	b.Run("ClusterIP32", func(b *testing.B) { run(b, corev1.ServiceTypeClusterIP, true) })
	b.Run("NodePort32", func(b *testing.B) { run(b, corev1.ServiceTypeNodePort, true) })
}
