package container

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// An agent that is killed while a runtime hangs in the middle of making a container leaves a
// monitor and a runtime: the next agent ends both, before it makes the container again.
func TestHalfMadeContainerIsEnded(t *testing.T) {
	r := newRig(t)
	r.scripts["a"] = "echo ready; read code < GATE; exit $code"
	if err := r.create(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
	// As conmon it leads a process group of its own, and has the ID among its arguments.
	left := exec.Command("sh", "-c", "sleep 1000 & echo; wait", "conmon", "--cid", "a", "--more")
	left.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := left.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	number := []byte(strconv.Itoa(left.Process.Pid))
	if err := os.WriteFile(filepath.Join(r.cfg.RunDir, "a", "conmon.pid"), number, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r.close()
	r.open()
	// Both have it open: it ends with the second.
	if err := out.(*os.File).SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("they run on: %v", err)
	}
	_ = syscall.Kill(-left.Process.Pid, syscall.SIGKILL)
	_ = left.Wait()
	if err := r.m.Start(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
