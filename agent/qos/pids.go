package qos

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// resourcePID is the name that processes and threads are reserved by (KEP-757).
const resourcePID corev1.ResourceName = "pid"

// leastReserved is what the node's daemons keep of the process numbers when
// nothing is reserved, but not more than a tenth of them: with all taken by
// pods nobody could log in.
const leastReserved = 1000

// pidLimits are how many processes and threads all pods together may have, of
// capacity, and each of them; nil sets nothing.
type pidLimits struct{ all, each *int64 }

// newPIDLimits takes from what the machine has what the configuration reserves.
func newPIDLimits(capacity int64, each *int64, reserved corev1.ResourceList) (pidLimits, error) {
	keep, ok := reserved[resourcePID]
	if !ok {
		keep = *resource.NewQuantity(min(leastReserved, capacity/10), resource.DecimalSI)
	}
	all := capacity - keep.Value()
	if all <= 0 {
		return pidLimits{}, fmt.Errorf("systemReserved and kubeReserved: pid: %s of %d process numbers leaves none for pods",
			keep.String(), capacity)
	}
	if each == nil {
		unlimited := int64(math.MaxInt64)
		each = &unlimited
	}
	l := pidLimits{all: &all, each: each}
	if *each > all {
		none := int64(-1) // the limit of all pods counts
		l.each = &none
	}
	return l, nil
}
