package container

import (
	"io"
	"os/exec"
	"strings"
	"testing"
)

// TestOutputIsBounded: what a command says is dropped beyond the limit, however
// the writer is filled.
func TestOutputIsBounded(t *testing.T) {
	copied := limited{most: 100}
	if _, err := io.Copy(&copied, strings.NewReader(strings.Repeat("x", 1000))); err != nil || copied.buf.Len() != 100 {
		t.Errorf("%d bytes were kept, %v", copied.buf.Len(), err)
	}
	said := limited{most: 100}
	cmd := exec.Command("head", "-c", "1000000", "/dev/zero")
	cmd.Stdout = &said
	if err := cmd.Run(); err != nil || said.buf.Len() != 100 {
		t.Errorf("%d bytes were kept of a command, %v", said.buf.Len(), err)
	}
}
