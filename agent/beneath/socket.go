package beneath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
)

// ErrNotSocket is about a name that is dialled and is something else.
var ErrNotSocket = errors.New("not a socket")

// Dial connects to a socket in this directory, through no links: what is found is
// looked at first, and stays the same whatever becomes of the name.
func (d *Dir) Dial(ctx context.Context, name string) (net.Conn, error) {
	held, err := d.Hold(name, NoLinks)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	st, err := held.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return nil, &fs.PathError{Op: "dial", Path: name, Err: ErrNotSocket}
	}
	return new(net.Dialer).DialContext(ctx, "unix", self(int(held.Fd())))
}

// Listen makes a socket in this directory for root alone (0600), in place of one that
// is there. It stays when the listener is closed: Root removes it.
func (d *Dir) Listen(name string) (*net.UnixListener, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("socket %q is in another directory", name)
	}
	if err := d.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// By the descriptor: the path may be longer than the 107 bytes of a socket's address.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: self(int(d.self.Fd())) + "/" + name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", filepath.Join(d.Root.Name(), name), err)
	}
	l.SetUnlinkOnClose(false)
	if err := d.Root.Chmod(name, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
