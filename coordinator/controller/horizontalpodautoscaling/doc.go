// Package horizontalpodautoscaling scales workloads by what their pods use, and by
// other metrics (HorizontalPodAutoscaler, autoscaling/v2).
//
// Every 15 seconds, for each autoscaler:
//
//	the target's scale  ──  AbleToScale: can it be read and written?
//	        │
//	each metric         ──  gather.go asks; ratio.go and propose.go make a number
//	        │               of replicas of each; the largest one counts.
//	        │               ScalingActive: could a number be made?
//	        ▼
//	history             ──  settle.go: not more than recent recommendations say
//	        │               (stabilisation), not faster than the policies, not
//	        │               beyond minReplicas and maxReplicas.
//	        ▼               ScalingLimited: was it held back?
//	the target's scale
//
// What has been recommended and done lately is in memory only, as upstream: after a
// change of leaders, stabilisation begins anew from the replicas that are there.
//
// A target with no replicas is left alone: its user has switched scaling off. (To
// scale to zero takes upstream's gate HPAScaleToZero, which is off in v1.36.)
package horizontalpodautoscaling
