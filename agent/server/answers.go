package server

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"
)

// answers keeps what the API server said to a question for a while. Questions
// hold tokens: they are kept as hashes with a key of this process, which tell a
// reader of its memory nothing, and which nobody can make to collide.
type answers[T any] struct {
	mu    sync.Mutex
	key   []byte
	known map[[sha256.Size]byte]answer[T]
	swept time.Time
}

type answer[T any] struct {
	value T
	until time.Time
}

// hash is called with mu held.
func (a *answers[T]) hash(question []byte) (sum [sha256.Size]byte) {
	if a.key == nil {
		a.key = make([]byte, sha256.Size)
		_, _ = rand.Read(a.key) // it never fails: see crypto/rand
	}
	h := hmac.New(sha256.New, a.key)
	h.Write(question)
	h.Sum(sum[:0])
	return sum
}

func (a *answers[T]) get(question []byte) (value T, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.known[a.hash(question)]
	if !ok || time.Now().After(known.until) {
		return value, false
	}
	return known.value, true
}

func (a *answers[T]) put(question []byte, value T, ttl time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[[sha256.Size]byte]answer[T]{}
	}
	now := time.Now()
	a.sweep(now)
	a.known[a.hash(question)] = answer[T]{value, now.Add(ttl)}
}

// sweep drops what has ended, once in a while, and makes room for one answer.
func (a *answers[T]) sweep(now time.Time) {
	if len(a.known) >= maxAnswers || now.Sub(a.swept) > time.Minute {
		a.swept = now
		for k, v := range a.known {
			if now.After(v.until) {
				delete(a.known, k)
			}
		}
	}
	for k := range a.known { // any: the API server can be asked again
		if len(a.known) < maxAnswers {
			return
		}
		delete(a.known, k)
	}
}
