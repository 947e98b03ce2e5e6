package withdraw

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// A connection owes an answer from its first byte on until the server has written, however
// long that takes; one that rests does not.
func TestQuiet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	quiet := func(bound time.Duration, ports ...uint16) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		return Quiet(ctx, "", ports)
	}
	if err := quiet(10*time.Second, port); err != nil {
		t.Errorf("without connections: %v", err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := quiet(300*time.Millisecond, port); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a client that has just connected: %v", err)
	}
	if err := quiet(10*time.Second, port); err != nil {
		t.Errorf("nothing was asked: %v", err)
	}
	if _, err := client.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := quiet(300*time.Millisecond, port); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a question that is not read: %v", err)
	}
	if _, err := server.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := quiet(300*time.Millisecond, port); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a question that is not answered: %v", err)
	}
	if err := quiet(10*time.Second, port+1); err != nil {
		t.Errorf("another port: %v", err)
	}
	if _, err := server.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if err := quiet(10*time.Second, port); err != nil {
		t.Errorf("all is answered: %v", err)
	}
}
