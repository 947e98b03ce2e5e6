// Package qos keeps the control groups that pods lie in, at the places where the
// kubelet has them, with what they may use.
//
//	CGROUP-ROOT
//	└── kubepods            all pods: what the node can give (node allocatable), and its process numbers
//	    ├── podUID          guaranteed pods
//	    ├── burstable
//	    │   └── podUID
//	    └── besteffort      the least share of CPU
//	        └── podUID
//
// Containers' groups are their runtime's. With an outside runtime all groups are
// made by it, at the places that Tree names; it leaves those of pods, which are deleted
// with them.
package qos
