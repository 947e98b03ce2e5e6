package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
)

// maxRequest bounds what a client asks in bytes.
const maxRequest = 1 << 20

// Serve serves the driver at a socket until ctx ends. Only root may use it.
func (d *Driver) Serve(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
	d.Register(s)
	stop := context.AfterFunc(ctx, s.GracefulStop)
	defer stop()
	return s.Serve(l)
}
