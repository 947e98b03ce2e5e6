package nstest

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tap is what passes an interface, as a neighbour who listens there has it.
type Tap struct {
	mu   sync.Mutex
	seen bytes.Buffer
}

// TapInto reads all that passes an interface in a namespace, until the test ends.
func TapInto(t testing.TB, ns, name string) *Tap {
	t.Helper()
	fd := -1
	if err := In(ns, func() (err error) {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00 // in the network's order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	}); err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000})
	p, stop, ended := &Tap{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1<<16)
		for {
			if n, err := unix.Read(fd, buf); err == nil {
				p.mu.Lock()
				p.seen.Write(buf[:n])
				p.mu.Unlock()
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended; unix.Close(fd) })
	return p
}

// Saw returns the number of bytes that passed until now, and whether a text was in them.
func (p *Tap) Saw(text string) (bytesSeen int, found bool) {
	time.Sleep(200 * time.Millisecond) // what was sent is on its way
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.Len(), bytes.Contains(p.seen.Bytes(), []byte(text))
}
