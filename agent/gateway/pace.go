package gateway

import "time"

// After an order to the proxy, restFactor times as long as it took is rested, restMost at most: in
// a storm of changes the two spend a fifth of a CPU on them.
const (
	restFactor = 4
	restMost   = time.Second
)

// rest is how long after something that took so long the next change waits.
func rest(took time.Duration) time.Duration { return min(restFactor*took, restMost) }
