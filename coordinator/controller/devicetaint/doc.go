// Package devicetaint deletes the pods whose devices have a NoExecute taint that
// their claims do not tolerate, at once or when tolerationSeconds are over (KEP-5055).
// Drivers tell of taints in their ResourceSlices.
package devicetaint
