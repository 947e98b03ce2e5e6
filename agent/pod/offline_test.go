package pod

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestOffline: pods wait for the API a moment, and start without it when there is
// none or it stays silent.
func TestOffline(t *testing.T) {
	for _, heard := range []time.Duration{0, offlineAfter / 2, 2 * offlineAfter} {
		synctest.Test(t, func(t *testing.T) {
			o := &Offline{Log: slog.New(slog.DiscardHandler)}
			if heard > 0 {
				synced := make(chan struct{})
				o.Synced = synced
				time.AfterFunc(heard, func() { close(synced) })
			}
			if err := o.Run(t.Context(), &Manager{}); err != nil {
				t.Error(err)
			}
			if o.Silent() != o.CutOff() {
				t.Errorf("heard after %v: silent %v", heard, o.Silent())
			}
			time.Sleep(2 * offlineAfter)
			if o.Silent() != (heard == 0) {
				t.Errorf("heard after %v, later: silent %v", heard, o.Silent())
			}
			if want := heard == 0 || heard > offlineAfter; o.CutOff() != want {
				t.Errorf("heard after %v: cut off %v", heard, o.CutOff())
			}
		})
	}
}
