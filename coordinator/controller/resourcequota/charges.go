package resourcequota

import (
	"sync"
	"time"
)

const (
	// settling is how long after a charge a quota's use is not lowered: admission
	// charges for an object before it is stored, and it must not be counted without.
	settling = time.Second
	// unseen is how long the use of a version is not lowered that charges know
	// nothing of yet: an informer's lister has it before its handlers are told.
	unseen = 50 * time.Millisecond
)

// charges remember, of the last version of each quota, when its use last grew.
type charges struct {
	mu   sync.Mutex
	seen map[string]charge
}

type charge struct {
	version string
	grew    time.Time
}

func (c *charges) note(key, version string, grew bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]charge{}
	}
	last := c.seen[key]
	last.version = version
	if grew {
		last.grew = now
	}
	c.seen[key] = last
}

func (c *charges) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, key)
}

// settled returns how long to wait until what was charged up to a version must be
// stored.
func (c *charges) settled(key, version string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, ok := c.seen[key]
	switch {
	case !ok || last.version != version:
		return unseen
	case last.grew.IsZero():
		return 0
	}
	return settling - now.Sub(last.grew)
}
