package ledger

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod tells whose a record is.
type Pod struct {
	UID             types.UID
	Namespace, Name string
}

// Of is what a record keeps of a pod.
func Of(p *corev1.Pod) Pod { return Pod{UID: p.UID, Namespace: p.Namespace, Name: p.Name} }

// Owner is the pod itself.
func (p Pod) Owner() Pod { return p }

// Share is what a pod has. It is never changed, but replaced.
type Share interface{ Owner() Pod }

// Records keeps the records of pods over restarts, by the pods' UIDs.
type Records[S any] interface {
	All() (map[string]*S, error)
	// PutNow returns when the record is on the disk.
	PutNow(key string, s *S) error
	Delete(key string) error
}

// Waiting tells that a pod may get soon what it asks for: pods that end have it.
type Waiting struct{ Err error }

func (w *Waiting) Error() string { return w.Err.Error() }

func (w *Waiting) Unwrap() error { return w.Err }

// Ledger has the shares of all pods. Its methods may be called at the same time.
type Ledger[S any, P interface {
	*S
	Share
}] struct {
	// What is shared, for errors: "CPUs".
	What    string
	Records Records[S]
	// Ending tells whether a pod ends, and whether it has ended with all its containers,
	// though it may not be released yet; nil: no pod does.
	Ending func(pod types.UID) (ending, idle bool)
	Log    *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]P
}

// Load reads the records of an earlier agent, before the first pod is looked at. One that is
// wrong (check, in the order of the UIDs) is dropped: its pod has lost its share.
func (l *Ledger[S, P]) Load(check func(P) error) error {
	records, err := l.Records.All()
	if err != nil {
		return fmt.Errorf("records of %s: %w", l.What, err)
	}
	pods := map[types.UID]P{}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		s := P(records[key])
		uid := s.Owner().UID
		err := fmt.Errorf("it is of pod %q", uid)
		if uid != "" && string(uid) == key {
			err = check(s)
		}
		if err == nil {
			pods[uid] = s
			continue
		}
		l.Log.Error("a pod has lost what it had for itself", "of", l.What, "pod", key, "err", err)
		if err := l.Records.Delete(key); err != nil {
			return fmt.Errorf("record of %s: %w", l.What, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = pods
	return nil
}

// Get is what a pod has, nil for nothing.
func (l *Ledger[S, P]) Get(uid types.UID) P {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[uid]
}

// Shares are those of all pods, by their UIDs.
func (l *Ledger[S, P]) Shares() []P {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]P, 0, len(l.pods))
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		out = append(out, l.pods[uid])
	}
	return out
}

// Pods are those that have something.
func (l *Ledger[S, P]) Pods() (out []*corev1.Pod) {
	for _, s := range l.Shares() {
		p := s.Owner()
		out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}})
	}
	return out
}

// Put has a share known, once it is on the disk.
func (l *Ledger[S, P]) Put(s P) error {
	uid := s.Owner().UID
	if err := l.Records.PutNow(string(uid), s); err != nil {
		return fmt.Errorf("record of %s: %w", l.What, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[uid] = s
	return nil
}

// Release frees what a pod has, and tells whether it had something.
func (l *Ledger[S, P]) Release(uid types.UID) (bool, error) {
	if l.Get(uid) == nil {
		return false, nil
	}
	if err := l.Records.Delete(string(uid)); err != nil {
		return true, fmt.Errorf("record of %s: %w", l.What, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, uid)
	return true, nil
}

// EndingShares are those of pods that end.
func (l *Ledger[S, P]) EndingShares() (out []P) {
	if l.Ending == nil {
		return nil
	}
	for _, s := range l.Shares() {
		if ending, _ := l.Ending(s.Owner().UID); ending {
			out = append(out, s)
		}
	}
	return out
}

// Sweep frees what pods have that have ended.
func (l *Ledger[S, P]) Sweep() {
	if l.Ending == nil {
		return
	}
	for _, s := range l.Shares() {
		uid := s.Owner().UID
		if _, idle := l.Ending(uid); !idle {
			continue
		}
		if _, err := l.Release(uid); err != nil {
			l.Log.Warn("what a pod had that has ended is not free yet", "of", l.What, "pod", uid, "err", err)
		}
	}
}
