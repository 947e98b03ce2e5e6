package main

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

// TestEndWithoutAParentWhoWaits: a process that has ended counts as gone though it
// is there, as a zombie, until its parent waits for it.
func TestEndWithoutAParentWhoWaits(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := end(ctx, cmd.Process); err != nil {
		t.Errorf("it has not ended: %v", err)
	}
	_ = cmd.Wait()
	if err := end(ctx, cmd.Process); err != nil {
		t.Errorf("once more: %v", err)
	}
}
