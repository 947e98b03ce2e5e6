// Package dbustest gives tests a system bus on which they are the service: godbus is a
// client, and the daemon of a bus is not on every machine.
package dbustest

import (
	"bufio"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

// Bus is a bus of its own.
type Bus struct {
	export func(*dbus.Conn) error

	mu    sync.Mutex
	conns []*dbus.Conn
	count int
}

// Start makes a bus the system bus of this process, until the test ends. For each client
// that comes export says what it finds, the bus's own objects too.
func Start(t testing.TB, export func(*dbus.Conn) error) *Bus {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	b := &Bus{export: export}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := b.serve(c); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		b.HangUp()
	})
	return b
}

// HangUp ends all connections.
func (b *Bus) HangUp() {
	for _, c := range b.take() {
		c.Close()
	}
}

func (b *Bus) take() []*dbus.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.conns
	b.conns = nil
	return list
}

// Count is how many clients have come.
func (b *Bus) Count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// Emit sends a signal to all clients that have not hung up.
func (b *Bus) Emit(path dbus.ObjectPath, name string, values ...any) {
	b.mu.Lock()
	list := slices.Clone(b.conns)
	b.mu.Unlock()
	for _, c := range list {
		_ = c.Emit(path, name, values...)
	}
}

// handshake lets godbus, which is a client, begin on the server's side too: what it says to
// authenticate is dropped, what it hears is made up.
type handshake struct {
	io.ReadWriteCloser
	in io.Reader
}

func (h *handshake) Read(p []byte) (int, error) { return h.in.Read(p) }

func (h *handshake) Write(p []byte) (int, error) {
	if text := string(p); text == "\x00" || strings.HasSuffix(text, "\r\n") {
		return len(p), nil
	}
	return h.ReadWriteCloser.Write(p)
}

func (b *Bus) serve(c net.Conn) error {
	in := bufio.NewReader(c)
	for line := ""; line != "BEGIN\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
		answer := map[string]string{"\x00AUTH\r\n": "REJECTED EXTERNAL\r\n", "NEGOTIATE_UNIX_FD\r\n": "ERROR\r\n"}[line]
		if strings.HasPrefix(line, "AUTH EXTERNAL") {
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return err
		}
	}
	canned := strings.NewReader("REJECTED ANONYMOUS\r\nOK 0123456789abcdef0123456789abcdef\r\n")
	conn, err := dbus.NewConn(&handshake{ReadWriteCloser: c, in: io.MultiReader(canned, in)})
	if err != nil {
		return err
	}
	if err := b.export(conn); err != nil {
		return err
	}
	b.mu.Lock()
	b.conns, b.count = append(b.conns, conn), b.count+1
	b.mu.Unlock()
	return conn.Auth([]dbus.Auth{dbus.AuthAnonymous()})
}
