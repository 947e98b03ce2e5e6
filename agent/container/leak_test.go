package container

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-project/shoal/tests/leak"
)

// TestMain is also the main of the programs that tests put in the place of the
// monitor and of OCI runtimes: this program under another name.
func TestMain(m *testing.M) {
	// Not os.Exit: under the race detector it takes a second.
	switch filepath.Base(os.Args[0]) {
	case "conmon":
		syscall.Exit(exitCode(fakeMonitor(os.Args)))
	case "runc", "other":
		syscall.Exit(exitCode(fakeRuntime(os.Args)))
	}
	leak.Check(m)
}
