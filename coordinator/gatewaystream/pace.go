package gatewaystream

import "time"

// restFactor times as long as something took is rested after it, restMost at most: a storm of
// changes, in an API that has very many Gateways, costs a tenth of a CPU, and what nodes are told
// is some seconds old.
const (
	restFactor = 9
	restMost   = 10 * time.Second
)

// pace spaces what is done for changes: the first after a while is done at once, the next not
// before the one before it has been rested from.
type pace struct{ next time.Time }

// wait is how long to wait from now on.
func (p *pace) wait() time.Duration { return max(time.Until(p.next), 0) }

// done notes that something was begun then, and is over now.
func (p *pace) done(began time.Time) {
	now := time.Now()
	p.next = now.Add(min(restFactor*now.Sub(began), restMost))
}
