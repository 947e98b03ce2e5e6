// Package extender asks programs outside of the scheduler (KubeSchedulerConfiguration,
// extenders) which nodes are good for a pod, whom to preempt for it, and to bind it.
package extender
