package volume

// InMemory is Saved for a node that keeps no tokens on its disk. TokenCache
// calls it under its lock.
type InMemory map[string]*PodTokens

// Get implements Saved.
func (m InMemory) Get(uid string) (*PodTokens, error) { return m[uid], nil }

// Put implements Saved.
func (m InMemory) Put(uid string, t *PodTokens) error {
	m[uid] = t
	return nil
}

// Delete implements Saved.
func (m InMemory) Delete(uid string) error {
	delete(m, uid)
	return nil
}
