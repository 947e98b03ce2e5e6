package main

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A service manager hears when the API is ready, that the process lives, and
// that it stops (sd_notify(3)), although the API server's library speaks to it
// too, and then takes its socket out of the environment.
func TestServiceManagerIsTold(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "3000000")
	p := coordinator(t, filepath.Join(dir, "data"), freePort(t))
	var heard []string
	expect := func(state string) {
		t.Helper()
		buf := make([]byte, 256)
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := manager.Read(buf)
			if err != nil {
				t.Fatalf("no %s: %v; heard %q", state, err, heard)
			}
			got := strings.TrimSpace(string(buf[:n]))
			if heard = append(heard, got); got == state {
				return
			}
		}
	}
	expect("READY=1")
	expect("WATCHDOG=1")
	expect("WATCHDOG=1")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expect("STOPPING=1")
	if err, ended := p.wait(time.Minute); !ended || err != nil {
		t.Errorf("ended %v: %v", ended, err)
	}
}
