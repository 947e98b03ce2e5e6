package host

import (
	"context"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// Programs that wait for a processor are told of; memory is watched in the same way, but
// to run short of it is no matter for a test.
func TestWatchStall(t *testing.T) {
	if Stall("cpu") == nil {
		t.Skip("the kernel does not measure stalls")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stalled, err := WatchStall(ctx, "cpu", 50*time.Millisecond, 500*time.Millisecond)
	if err != nil {
		t.Skipf("triggers are not allowed here: %v", err)
	}
	for range 3 * runtime.NumCPU() {
		busy := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		defer busy.Wait()
	}
	defer cancel() // before the programs are waited for
	select {
	case <-stalled:
	case <-time.After(30 * time.Second):
		t.Error("nobody told of the stall")
	}
	if _, err := WatchStall(ctx, "nothing", time.Second, 2*time.Second); err == nil {
		t.Error("a resource that is none is watched")
	}
}
