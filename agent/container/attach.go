package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Streams in the packets of conmon's attach socket: the first byte tells.
const (
	attachStdout = 2
	attachStderr = 3
	attachPacket = 32 << 10 // conmon sends at most 8 KiB and the byte
)

// attachLinger is how long what a container answers is still heard after the
// client's input has ended, where the end is not the container's.
const attachLinger = 100 * time.Millisecond

// Attach connects to the container's own streams until it exits, the client
// leaves (ctx) or the client's input ends. The end of the input is also that of
// a container that takes one client's only (StdinOnce, no terminal): such a client
// hears it to its exit.
func (m *Manager) Attach(ctx context.Context, id string, streams IO) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	c := m.state(s)
	if c.State != Running {
		return fmt.Errorf("container is in %s state: %w", criState(c.State), errdefs.ErrFailedPrecondition)
	}
	conn, err := m.dialAttach(c.ID)
	if err != nil {
		return fmt.Errorf("attach to container: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go follow(streams.Resize, over,
		func(z Size) { _ = m.control(c.ID, fmt.Sprintf("%d %d %d\n", controlResize, z.Height, z.Width)) })
	if streams.Stdin != nil {
		go func() {
			_, _ = io.CopyBuffer(onlyWriter{conn}, streams.Stdin, make([]byte, 8<<10))
			if c.Config.GetStdinOnce() && !c.Config.GetTty() {
				_ = conn.CloseWrite()
				return
			}
			// Closing at once could take from conmon what it has not read yet.
			_ = conn.SetReadDeadline(time.Now().Add(attachLinger))
		}()
	}
	return receive(conn, streams)
}

// onlyWriter hides other methods, so that packets keep their size.
type onlyWriter struct{ io.Writer }

func receive(conn *net.UnixConn, streams IO) error {
	buf := make([]byte, attachPacket)
	for {
		n, err := conn.Read(buf)
		if n > 1 {
			w := streams.Stdout
			if buf[0] == attachStderr && streams.Stderr != nil {
				w = streams.Stderr
			}
			if w != nil {
				if _, werr := w.Write(buf[1:n]); werr != nil {
					return nil // the client has left
				}
			}
		}
		if err != nil || n == 0 {
			if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
				errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("attach to container: %w", err)
		}
	}
}

// dialAttach connects by a descriptor of the directory, as a socket's path
// may have 107 bytes only.
func (m *Manager) dialAttach(id string) (*net.UnixConn, error) {
	dir, err := os.Open(m.bundle(id))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := fmt.Sprintf("/proc/self/fd/%d/attach", dir.Fd())
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
}

// Messages of conmon's control fifo.
const (
	controlResize = 1
	controlReopen = 2
)

// control writes one line to conmon's control fifo.
func (m *Manager) control(id, line string) error {
	f, err := os.OpenFile(filepath.Join(m.bundle(id), "ctl"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("talk to conmon: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(line); err != nil {
		return fmt.Errorf("talk to conmon: %w", err)
	}
	return nil
}

// reopenWait bounds the wait for conmon's new log file.
const reopenWait = 5 * time.Second

// ReopenLog has conmon open its log file anew, after a rotation moved it.
func (m *Manager) ReopenLog(ctx context.Context, id string) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	c := m.state(s)
	if c.State != Running {
		return fmt.Errorf("container is not running: %w", errdefs.ErrFailedPrecondition)
	}
	if c.LogPath == "" {
		return nil
	}
	s.op.Lock() // it is not removed meanwhile
	if m.state(s).State == Running {
		err = m.keepLogDir(c)
	}
	s.op.Unlock()
	if err != nil {
		return fmt.Errorf("reopen log of container %q: %w", c.ID, err)
	}
	if err := m.control(c.ID, fmt.Sprintf("%d 0 0\n", controlReopen)); err != nil {
		return err
	}
	deadline := time.Now().Add(reopenWait)
	for wait := time.Millisecond; ; wait *= 2 { // conmon gives no answer
		if _, err := os.Lstat(c.LogPath); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("reopen log of container %q: conmon did not make %s", c.ID, c.LogPath)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
