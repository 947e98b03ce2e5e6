// Package podresources tells monitoring agents of the node which devices, CPUs and memory
// its containers have for themselves: the kubelet's pod resources API, v1 and v1alpha1, at
// pod-resources/kubelet.sock. It is for root alone, and answers a hundred requests a second.
package podresources
