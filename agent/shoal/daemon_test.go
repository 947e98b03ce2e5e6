package main

import (
	"bufio"
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
	if err := end(ctx, cmd.Process, stopTimeout); err != nil {
		t.Errorf("it has not ended: %v", err)
	}
	_ = cmd.Wait()
	if err := end(ctx, cmd.Process, stopTimeout); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// TestEndIsPatient: who needs a while to clean up is not killed meanwhile, and who does
// not end at all is.
func TestEndIsPatient(t *testing.T) {
	for script, c := range map[string]struct {
		patience time.Duration
		status   int
	}{
		"trap 'sleep 0.2; exit 7' TERM; echo; while :; do sleep 0.01; done": {time.Minute, 7},
		"trap '' TERM; echo; while :; do sleep 0.01; done":                  {time.Millisecond, -1}, // by a signal
	} {
		cmd := exec.Command("sh", "-c", script)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // the trap is set
			t.Error(err)
		}
		if err := end(t.Context(), cmd.Process, c.patience); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != c.status {
			t.Errorf("%s: status %d, want %d", script, got, c.status)
		}
	}
}
