package controller

import (
	"strconv"
	"sync"
)

// Writes remembers the resourceVersion of a controller's last write of each of
// its own objects, so that it does not work on a cached one from before: that
// would only end in a conflict, or in counting twice. The write's event brings
// the key back. Versions of one kind are ordered (KEP-5504).
type Writes struct {
	mu    sync.Mutex
	byKey map[string]uint64
}

// NewWrites returns an empty record.
func NewWrites() *Writes { return &Writes{byKey: map[string]uint64{}} }

// Wrote notes the version that a write of key's object has returned.
func (w *Writes) Wrote(key, resourceVersion string) {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byKey[key] = n
}

// Behind tells whether a cached version of key's object is from before the
// last write.
func (w *Writes) Behind(key, resourceVersion string) bool {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	return err == nil && n < w.byKey[key]
}

// Forget drops key, when its object is gone.
func (w *Writes) Forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byKey, key)
}
