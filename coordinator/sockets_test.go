package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The store in the process has no socket for peers: etcd asks nobody who they
// are there, and any process of the host's network could speak to one without
// a name in a directory (an abstract one, unix(7)).
func TestNoSocketForPeers(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	client(t, p, dir, port)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("%d descriptors: %v", len(fds), err)
	}
	open := map[string]bool{}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			open[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	const listening = "00010000" // __SO_ACCEPTCON, the column Flags
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 6 && f[3] == listening && open[f[6]] {
			t.Errorf("it listens: %s", line)
		}
	}
}
