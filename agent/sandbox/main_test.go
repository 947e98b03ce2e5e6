package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-project/shoal/tests/leak"
)

// pauseVariable says where the program shoal-pause is.
const pauseVariable = "SHOAL_TEST_PAUSE"

// TestMain runs the tests of root in a mount namespace of their own, with the
// program shoal-pause made for them.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(pauseVariable) != "" {
		leak.Check(m)
		return
	}
	err := inOwnMounts()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func inOwnMounts() error {
	dir, err := os.MkdirTemp("", "pause")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pause := filepath.Join(dir, "shoal-pause")
	build := exec.Command("go", "build", "-o", pause, "github.com/shoal-project/shoal/agent/pause")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build shoal-pause: %w: %s", err, out)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), pauseVariable+"="+pause)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd.Run()
}
