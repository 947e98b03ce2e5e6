package podresources

import (
	"context"

	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// alpha is the API's older version, which monitoring agents still speak: devices of main
// containers, and nothing else.
type alpha struct {
	podresourcesv1alpha1.UnimplementedPodResourcesListerServer
	s *Server
}

// List tells of all pods.
func (a *alpha) List(context.Context, *podresourcesv1alpha1.ListPodResourcesRequest) (
	*podresourcesv1alpha1.ListPodResourcesResponse, error) {
	out := &podresourcesv1alpha1.ListPodResourcesResponse{}
	for _, p := range a.s.Pods() {
		one := &podresourcesv1alpha1.PodResources{Name: p.Name, Namespace: p.Namespace}
		for i := range p.Spec.Containers {
			c := &podresourcesv1alpha1.ContainerResources{Name: p.Spec.Containers[i].Name}
			for _, d := range a.s.Devices(p.UID, c.Name) {
				c.Devices = append(c.Devices, &podresourcesv1alpha1.ContainerDevices{
					ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
			}
			one.Containers = append(one.Containers, c)
		}
		out.PodResources = append(out.PodResources, one)
	}
	return out, nil
}
