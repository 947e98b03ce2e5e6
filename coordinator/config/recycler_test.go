package config

import (
	"strings"
	"testing"
)

// TestRecycler: what cannot be is told with the field and what to give.
func TestRecycler(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for want, change := range map[string]func(*Recycler){
		`pvRecyclerPodTemplateFilepathHostpath "pod.yaml": give an absolute path`: func(r *Recycler) {
			r.PVRecyclerPodTemplateFilepathHostpath = "pod.yaml"
		},
		`pvRecyclerPodTemplateFilepathNFS "./p": give an absolute path`: func(r *Recycler) {
			r.PVRecyclerPodTemplateFilepathNFS = "./p"
		},
		`pvRecyclerMinimumTimeoutHostpath "0": give a number of seconds above 0`: func(r *Recycler) {
			r.PVRecyclerMinimumTimeoutHostpath = 0
		},
		`pvRecyclerMinimumTimeoutNFS "-1": give a number`: func(r *Recycler) { r.PVRecyclerMinimumTimeoutNFS = -1 },
		`pvRecyclerIncrementTimeoutNFS "-1": give a number of seconds, or 0`: func(r *Recycler) {
			r.PVRecyclerIncrementTimeoutNFS = -1
		},
		`pvRecyclerTimeoutIncrementHostpath "2147483648": give`: func(r *Recycler) {
			r.PVRecyclerTimeoutIncrementHostpath = 1 << 31
		},
	} {
		c := Default()
		change(&c.Recycler)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s in it", err, want)
		}
	}
}
