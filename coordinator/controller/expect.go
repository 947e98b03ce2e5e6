package controller

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// expectFor bounds how long a write is waited for that the cache never shows,
// for example a pod that was created and gone again between two lists.
const expectFor = 30 * time.Second

// Expectations let a controller that counts objects wait until its cache shows
// its own writes, so that it does not create or delete twice. They hold UIDs
// by the owner's key.
type Expectations struct {
	mu    sync.Mutex
	byKey map[string]*expected
}

type expected struct {
	created, deleted map[types.UID]struct{}
	since            time.Time
}

// NewExpectations returns an empty set.
func NewExpectations() *Expectations { return &Expectations{byKey: map[string]*expected{}} }

// Created notes an object that key's owner has created.
func (e *Expectations) Created(key string, uid types.UID, now time.Time) {
	e.note(key, now, func(x *expected) { x.created[uid] = struct{}{} })
}

// Deleted notes an object that key's owner has deleted.
func (e *Expectations) Deleted(key string, uid types.UID, now time.Time) {
	e.note(key, now, func(x *expected) { x.deleted[uid] = struct{}{} })
}

func (e *Expectations) note(key string, now time.Time, set func(*expected)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.byKey[key]
	if x == nil {
		x = &expected{created: map[types.UID]struct{}{}, deleted: map[types.UID]struct{}{}}
		e.byKey[key] = x
	}
	x.since = now
	set(x)
}

// Gone notes that the cache has told uid's deletion.
func (e *Expectations) Gone(key string, uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.byKey[key]; x != nil {
		delete(x.created, uid)
		delete(x.deleted, uid)
	}
}

// Forget drops all of key's expectations.
func (e *Expectations) Forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byKey, key)
}

// Met tells whether the cache shows every noted write; shown, asked only when
// there is one, says for each UID in the cache whether it is being deleted.
// When not met, wait is the time after which the rest is no longer waited for.
func (e *Expectations) Met(key string, shown func() map[types.UID]bool, now time.Time) (met bool, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.byKey[key]
	if x == nil {
		return true, 0
	}
	terminating := shown()
	for uid := range x.created {
		if _, is := terminating[uid]; is {
			delete(x.created, uid)
		}
	}
	for uid := range x.deleted {
		if ending, is := terminating[uid]; ending || !is {
			delete(x.deleted, uid)
		}
	}
	wait = x.since.Add(expectFor).Sub(now)
	if len(x.created)+len(x.deleted) == 0 || wait <= 0 {
		delete(e.byKey, key)
		return true, 0
	}
	return false, wait
}

// ShownPods tells Met what an owner has in the cache.
func ShownPods(pods cache.Indexer, owner types.UID) func() map[types.UID]bool {
	return func() map[types.UID]bool {
		controlled := Controlled[corev1.Pod](pods, owner)
		shown := make(map[types.UID]bool, len(controlled))
		for _, p := range controlled {
			shown[p.UID] = p.DeletionTimestamp != nil
		}
		return shown
	}
}
