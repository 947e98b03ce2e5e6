package horizontalpodautoscaling

import (
	"errors"
	"fmt"
	"testing"
)

// The labels of what is counted are upstream's.
func TestMetricLabels(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, "none"}, {errors.New("x"), "internal"}, {fmt.Errorf("of it: %w", specError{errors.New("x")}), "spec"},
	} {
		if got := errorOf(tc.err); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
	for _, tc := range []struct {
		current, wanted int32
		want            string
	}{{1, 2, "scale_up"}, {2, 1, "scale_down"}, {2, 2, "none"}} {
		if got := actionOf(tc.current, tc.wanted); got != tc.want {
			t.Errorf("from %d to %d: %s, want %s", tc.current, tc.wanted, got, tc.want)
		}
	}
}
