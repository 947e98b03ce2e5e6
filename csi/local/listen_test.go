package local

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestSocketDeleted: whoever deletes the socket, or all that is around it, ends no driver.
func TestSocketDeleted(t *testing.T) {
	root := t.TempDir()
	d, err := New(Config{Directory: filepath.Join(root, "volumes"), NodeID: "n", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(root, "plugins", "driver", "csi.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx, l) }()
	answers := func(after string) {
		t.Helper()
		client, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		for { // by a connection of its own each time, with no pause of a client's after a failure
			_, err := csipb.NewIdentityClient(client).Probe(ctx, &csipb.ProbeRequest{})
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("no answer after %s: %v", after, err)
			}
			client.ResetConnectBackoff()
			time.Sleep(time.Millisecond)
		}
	}
	answers("the start")
	for _, deleted := range []string{socket, filepath.Dir(socket), filepath.Dir(filepath.Dir(socket)), socket} {
		err := os.RemoveAll(deleted)
		for errors.Is(err, unix.ENOTEMPTY) { // the driver has made the socket again meanwhile
			err = os.RemoveAll(deleted)
		}
		if err != nil {
			t.Fatal(err)
		}
		answers("the end of " + deleted)
		st, err := os.Stat(socket)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the socket is open to others: %v, %v", st, err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}
