package process

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// A container's timers are its own: the agent's are looser.
func TestStartExact(t *testing.T) {
	LoosenTimers()
	defer setSlack(exactSlack)
	if got := slackOf(t, (*exec.Cmd).Start); got != "1000000" {
		t.Errorf("a program of ours has a slack of %s ns", got)
	}
	if got := slackOf(t, Start); got != "50000" {
		t.Errorf("a program of others has a slack of %s ns", got)
	}
	if got := slackOf(t, (*exec.Cmd).Start); got != "1000000" {
		t.Errorf("after it, a program of ours has a slack of %s ns", got)
	}
}

// slackOf starts a program that tells the slack of its timers.
func slackOf(t *testing.T, start func(*exec.Cmd) error) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("cat", "/proc/self/timerslack_ns")
	cmd.Stdout = &out
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}
