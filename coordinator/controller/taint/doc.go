// Package taint deletes the pods that do not tolerate a NoExecute taint of
// their node, when the time that they tolerate it is over (NODE-47). The time
// counts from the taint's timeAdded, so a new leader comes to the same moment.
package taint
