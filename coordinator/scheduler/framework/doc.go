// Package framework is what scheduler plugins are written against: the
// extension points, the verdicts they return, and the snapshot of nodes that
// they judge. A plugin works for a class of identical pods, not for one pod.
package framework
