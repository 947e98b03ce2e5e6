package process

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestServiceManagerHears: ready, alive while the process says so, stopping; and
// neither children nor libraries find the socket.
func TestServiceManagerHears(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "3000")
	m, err := TakeServiceManager()
	if err != nil {
		t.Fatal(err)
	}
	if left := os.Getenv("NOTIFY_SOCKET") + os.Getenv("WATCHDOG_USEC"); left != "" {
		t.Errorf("left in the environment: %q", left)
	}
	m.Ready()
	ctx, cancel := context.WithCancel(context.Background())
	answers := 0
	m.KeepAlive(ctx, func(context.Context) bool {
		if answers++; answers == 3 {
			cancel()
		}
		return answers == 2
	})
	m.Stopping()
	for _, want := range []string{"READY=1", "WATCHDOG=1", "STOPPING=1"} {
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 64)
		n, err := manager.Read(text)
		if got := string(text[:n]); err != nil || got != want {
			t.Errorf("heard %q (%v), want %s", got, err, want)
		}
	}
}

// TestNoServiceManager: a process that nobody waits for tells nobody.
func TestNoServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	m, err := TakeServiceManager()
	if err != nil {
		t.Fatal(err)
	}
	m.Ready()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m.KeepAlive(ctx, func(context.Context) bool {
		t.Error("was asked whether it lives")
		return true
	})
}
