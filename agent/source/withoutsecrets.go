package source

import (
	"errors"
	"strings"
)

// WithoutSecrets keeps no Secret on the disk.
type WithoutSecrets struct{ Saved }

// ErrNotKept is why a Secret is not known while the API is away.
var ErrNotKept = errors.New("the Secret is not kept on this node (checkpointSecrets is false)")

// IsSecret tells whether a key of Saved is a Secret's.
func IsSecret(key string) bool { return strings.HasPrefix(key, secret+"_") }

// Get implements Saved.
func (w WithoutSecrets) Get(key string) (*SavedObject, error) {
	if IsSecret(key) {
		return nil, ErrNotKept
	}
	return w.Saved.Get(key)
}

// Put implements Saved.
func (w WithoutSecrets) Put(key string, o *SavedObject) error {
	if o.Secret != nil {
		return nil
	}
	return w.Saved.Put(key, o)
}
