package resourcequota

import (
	"sync"
	"time"
)

// settling is how long after a charge a quota's use is not lowered: admission
// charges for an object before it is stored, and it must not be counted without.
const settling = time.Second

// charges remember when the use of a quota last grew.
type charges struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (c *charges) note(key string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[string]time.Time{}
	}
	c.at[key] = now
}

func (c *charges) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, key)
}

// settled returns how long to wait until what was charged must be stored.
func (c *charges) settled(key string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[key]
	if !ok {
		return 0
	}
	return settling - now.Sub(at)
}
