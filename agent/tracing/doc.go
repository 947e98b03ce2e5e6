// Package tracing tells an OpenTelemetry collector what the agent does, as spans
// (the kubelet's field tracing): each look at a pod, what follows from it, each
// request to the container runtime, and each authenticated request to the
// kubelet's API, under the trace that its caller has begun.
//
//	syncPod | syncTerminatingPod   (service kubelet, k8s.pod …)
//	└─ start                       what the worker does beside itself
//	   ├─ runtime.v1.ImageService/PullImage
//	   └─ runtime.v1.RuntimeService/CreateContainer
//
// A nil Tracer tells nobody, and costs a comparison.
package tracing
