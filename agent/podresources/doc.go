// Package podresources tells monitoring agents of the node which devices its containers
// have: the kubelet's pod resources API, v1 and v1alpha1, at pod-resources/kubelet.sock. It is
// for root alone, and answers a hundred requests a second.
//
// Exclusive CPUs and memory are not told of, as by a kubelet whose CPU and memory managers
// have the policy none: there are no such managers here.
package podresources
