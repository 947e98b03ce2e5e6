package local

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// listenRetry is when a socket that cannot be made is tried again.
const listenRetry = 10 * time.Second

// listenAgain serves at a socket again when somebody has deleted it, or its directory, until
// ctx ends: no volume could be made or mounted any more.
func (d *Driver) listenAgain(ctx context.Context, l net.Listener, serve func(net.Listener)) {
	unix, ok := l.(*net.UnixListener)
	if !ok {
		return
	}
	socket := unix.Addr().String()
	events, err := fsnotify.NewWatcher()
	if err != nil {
		d.log.Warn("nothing tells when somebody deletes the socket of the driver", "socket", socket, "err", err)
		return
	}
	defer events.Close()
	for {
		_ = events.Remove(filepath.Dir(socket)) // it may be another directory by now
		var look <-chan time.Time
		if events.Add(filepath.Dir(socket)) != nil { // the kernel gives no more watches
			look = time.After(listenRetry)
		}
		if await(ctx, events, look, socket) != nil {
			return
		}
		if !absent(socket) {
			continue
		}
		again, err := Listen(socket)
		if err != nil {
			d.log.Warn("the socket of the driver was deleted by somebody else, and cannot be made again",
				"socket", socket, "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(listenRetry):
				continue
			}
		}
		d.log.Warn("the socket of the driver was deleted by somebody else; it is made again", "socket", socket)
		unix.SetUnlinkOnClose(false) // its name is the other's
		unix.Close()
		unix = again.(*net.UnixListener)
		serve(again)
	}
}

// await returns when the socket is gone or look has something, or an error at the end of ctx.
func await(ctx context.Context, events *fsnotify.Watcher, look <-chan time.Time, socket string) error {
	for !absent(socket) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look:
			return nil
		case <-events.Errors:
		case <-events.Events:
		}
	}
	return ctx.Err()
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}
