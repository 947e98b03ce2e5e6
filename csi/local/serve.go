package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	"github.com/shoal-project/shoal/csi/btrfs"
)

// maxRequest bounds what a client asks, in bytes.
const maxRequest = 1 << 20

// Listen makes a socket that only root may use, in the place of one that an earlier
// process left.
func Listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve serves the driver until ctx ends, and the calls that are at work then.
func (d *Driver) Serve(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
	d.Register(s)
	stop := context.AfterFunc(ctx, s.GracefulStop)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { d.countStrays(ctx) })
	ended := make(chan error)
	serve := func(l net.Listener) {
		tasks.Go(func() {
			err := s.Serve(l)
			select {
			case ended <- err:
			case <-ctx.Done():
			}
		})
	}
	serve(l)
	tasks.Go(func() { d.listenAgain(ctx, l, serve) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) { // another has taken its place
				return err
			}
		}
	}
}

// Purge deletes the volumes and snapshots in a directory that are subvolumes: no removal
// of files is sure to get through what a container made in them.
func Purge(directory string) error {
	for _, kind := range []string{"volumes", "snapshots"} {
		list, err := filepath.Glob(filepath.Join(directory, kind, "*", data))
		if err != nil {
			return err
		}
		for _, path := range list {
			if err := btrfs.Delete(path); err != nil && !errors.Is(err, btrfs.ErrNone) {
				return err
			}
		}
	}
	return nil
}

// Detach ends what the kernel still has of the volumes in a directory when nothing
// of them is mounted any more: the devices of those that are plain devices. A file in a
// directory's place holds none.
func Detach(directory string) error {
	s := shelf{dir: filepath.Join(directory, "volumes")}
	ids, err := s.ids()
	if gone(err) {
		return nil
	}
	errs := []error{err}
	for _, id := range ids {
		if err := detach(s.image(id)); !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) }
