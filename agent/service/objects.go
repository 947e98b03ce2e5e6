package service

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// objectsWait is how long a container's start waits for the services to be
// known: right after the agent's start they are on their way.
const objectsWait = 5 * time.Second

// Objects returns the services that have an address, in the form that
// containers' environments are made of. It waits a moment until they are known;
// when they are not, cutOff tells whether none will do: the node starts its pods
// without an API, and none beats not starting.
func (s *Source) Objects(ctx context.Context, cutOff func() bool) ([]*corev1.Service, bool) {
	tables := s.Tables()
	if tables == nil {
		changed, late := s.Changed(), time.After(objectsWait)
		for tables = s.Tables(); tables == nil; tables = s.Tables() {
			select {
			case <-ctx.Done():
				return nil, false
			case <-late:
				return nil, cutOff()
			case <-changed:
			}
		}
	}
	out := make([]*corev1.Service, 0, tables.Len())
	for key, t := range tables.All() {
		if len(t.ClusterIPs) > 0 {
			out = append(out, object(key, t))
		}
	}
	return out, true
}

func object(key Key, s *Service) *corev1.Service {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	o.Spec.ClusterIP = s.ClusterIPs[0].String()
	for _, p := range s.Ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{
			Name:     p.Name,
			Protocol: corev1.Protocol(p.Protocol),
			Port:     int32(p.Number),
		})
	}
	return o
}
