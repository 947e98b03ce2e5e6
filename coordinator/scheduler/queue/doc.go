// Package queue holds the pods that wait to be scheduled: the active heap, the
// back-off heap and the unschedulable pool, and decides by the plugins' hints
// which event brings a refused pod back.
package queue
