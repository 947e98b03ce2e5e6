package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// poll calls ok until it returns nil.
func poll(ctx context.Context, limit time.Duration, ok func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", limit, err)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }
