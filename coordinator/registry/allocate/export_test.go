package allocate

import "time"

// SetAddressOrphaned changes how old an address without a Service must be, and
// returns what undoes it.
func SetAddressOrphaned(d time.Duration) func() {
	old := addressOrphaned
	addressOrphaned = d
	return func() { addressOrphaned = old }
}
