package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Whatever a coordinator does when its store is lost, it ends, and says why.
func TestStoreIsLost(t *testing.T) {
	reason, other := errors.New("removed"), errors.New("server stopped")
	hang := make(chan struct{})
	defer close(hang)
	for name, c := range map[string]struct {
		lost bool
		do   func(context.Context) error
		want string
	}{
		"ends when it is told": {lost: true, do: func(ctx context.Context) error { <-ctx.Done(); return nil }, want: "store: removed"},
		"fails by it first":    {lost: true, do: func(context.Context) error { return other }, want: "store: removed"},
		"does not end":         {lost: true, do: func(context.Context) error { <-hang; return nil }, want: "store: removed"},
		"fails by itself":      {do: func(context.Context) error { return other }, want: "server stopped"},
		"ends":                 {do: func(context.Context) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			lost := make(chan struct{})
			why := func() error { return nil }
			if c.lost {
				close(lost)
				why = func() error { return reason }
			}
			got := ""
			if err := whileNotLost(t.Context(), lost, why, 50*time.Millisecond, c.do); err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("%q, not %q", got, c.want)
			}
		})
	}
}
