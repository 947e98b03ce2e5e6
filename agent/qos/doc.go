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
// Containers' groups are their runtime's, an outside one's too.
package qos
