package gatewaycontrol

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t testing.TB) (a, b *Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[i] = NewConn(c.(*net.UnixConn), MaxFrame)
		t.Cleanup(func() { _ = out[i].Close() })
	}
	return out[0], out[1]
}

// TestSockets: a socket that goes beside a frame is the same one at the other end; a large
// frame arrives whole.
func TestSockets(t *testing.T) {
	a, b := pair(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	large := Hello{Program: strings.Repeat("x", 3<<20), Sockets: []string{"tcp/1"}}
	sent := make(chan error, 1)
	go func() { sent <- a.Send(large, f) }()
	var got Hello
	files, err := b.Receive(&got)
	if err != nil || <-sent != nil || len(files) != 1 || got.Program != large.Program {
		t.Fatal(len(files), err, len(got.Program))
	}
	defer files[0].Close()
	again, err := net.FileListener(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Addr().String() != l.Addr().String() {
		t.Errorf("%s, not %s", again.Addr(), l.Addr())
	}
	if err := b.ByRoot(); err != nil {
		t.Errorf("this process itself: %v", err)
	}
}

// TestBadFrames: what is too long, cut off or no JSON is an error, and its sockets are closed.
func TestBadFrames(t *testing.T) {
	for name, frame := range map[string][]byte{
		"too long": {0xff, 0xff, 0xff, 0xff},
		"cut off":  {0, 0, 0, 9, '{'},
		"no JSON":  {0, 0, 0, 1, '['},
		"nothing":  {},
	} {
		a, b := pair(t)
		if _, err := a.c.Write(frame); err != nil && name != "nothing" {
			t.Fatal(err)
		}
		_ = a.Close()
		var o Order
		if files, err := b.Receive(&o); err == nil || files != nil {
			t.Errorf("%s: %v %v", name, files, err)
		}
	}
}

// FuzzReceive: no frame makes the other end fail but by an error.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0, 0, 1})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) > 64<<10 {
			return
		}
		a, b := pair(t)
		go func() {
			_, _ = io.Copy(a.c, bytes.NewReader(frame))
			_ = a.Close()
		}()
		var o Order
		_, err := b.Receive(&o)
		if err == nil && len(frame) < 4 {
			t.Error("a frame of less than its header")
		}
	})
}
