package controller

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice/util"
)

// byService is the index of EndpointSlices by the key of their Service and who
// manages them.
const byService = "service"

// SlicesOf tells which EndpointSlices one manager (the label
// endpointslice.kubernetes.io/managed-by) keeps of a Service, at the same cost
// in a namespace of any size. Those being deleted are among them.
func SlicesOf(informer cache.SharedIndexInformer,
	manager string) (func(namespace, service string) []*discoveryv1.EndpointSlice, error) {
	err := Index(informer, byService, func(obj any) ([]string, error) {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
			return nil, nil
		}
		return []string{
			slicesKey(s.Namespace, s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy])}, nil
	})
	indexer := informer.GetIndexer()
	return func(namespace, service string) []*discoveryv1.EndpointSlice {
		objs, _ := indexer.ByIndex(byService, slicesKey(namespace, service, manager)) // it fails only without the index
		out := make([]*discoveryv1.EndpointSlice, 0, len(objs))
		for _, o := range objs {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok {
				out = append(out, s)
			}
		}
		return out
	}, err
}

func slicesKey(namespace, service, manager string) string {
	return namespace + "/" + service + "/" + manager
}

// WatchSelected has the Services reconciled that select a pod which changed, or
// did so before.
func WatchSelected(l *Loop, pods cache.SharedIndexInformer, services corelisters.ServiceLister) {
	Watch(l, pods, func(old, pod *corev1.Pod) {
		keys, err := util.GetServicesToUpdate(services, util.GetPodUpdateProjectionKey(untyped(old), untyped(pod)))
		if err != nil {
			return
		}
		for key := range keys {
			l.Add(key)
		}
	})
}

// untyped avoids a typed nil, which the library would take for a pod.
func untyped(pod *corev1.Pod) any {
	if pod == nil {
		return nil
	}
	return pod
}
