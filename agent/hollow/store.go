package hollow

// Store is a checkpoint that forgets: a hollow node has nothing to take over
// after a restart.
type Store[T any] struct{}

// Get returns nothing.
func (Store[T]) Get(string) (*T, error) { return nil, nil }

// All returns nothing.
func (Store[T]) All() (map[string]*T, error) { return nil, nil }

// Put forgets v.
func (Store[T]) Put(string, *T) error { return nil }

// Delete does nothing.
func (Store[T]) Delete(string) error { return nil }

// Close does nothing.
func (Store[T]) Close() {}
