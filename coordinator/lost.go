package main

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-project/shoal/coordinator/store"
)

// lostTime bounds the end of a coordinator whose store is lost. Much of what an end does
// goes through the store, as giving up leadership, and waits for answers in vain.
const lostTime = 15 * time.Second

// whileStored runs do with an open store, and ends it when the store is lost: after this
// member was removed, or with its disk. Then it returns the reason, in lostTime at the
// latest: what do has left undone ends with the process.
func whileStored(ctx context.Context, st *store.Store, do func(context.Context) error) error {
	return whileNotLost(ctx, st.Lost(), st.Err, lostTime, do)
}

func whileNotLost(
	ctx context.Context, lost <-chan struct{}, why func() error, patience time.Duration, do func(context.Context) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		if why() == nil {
			return err
		}
	case <-lost:
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
		}
	}
	return fmt.Errorf("store: %w", why())
}
