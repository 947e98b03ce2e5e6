// Command shoal-csi-local is the storage driver that ships with Shoal as a program
// of its own: for clusters other than Shoal's, and for tests. On Shoal's nodes the
// agent serves it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/shoal-project/shoal/csi/local"
)

func main() {
	host, _ := os.Hostname() // the flag may tell
	endpoint := flag.String("endpoint", "unix:///var/lib/kubelet/plugins/"+local.Name+"/csi.sock",
		"socket at which the driver serves")
	dir := flag.String("directory", "/var/lib/shoal/volumes", "where volumes are kept")
	node := flag.String("node-id", host, "name of the node")
	fsType := flag.String("fs-type", "ext4", "file system of volumes that are asked for without one: ext4, xfs, btrfs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	config := local.Config{Directory: *dir, NodeID: *node, FSType: *fsType, Log: slog.Default()}
	if err := run(ctx, *endpoint, config); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-csi-local:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoint string, config local.Config) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("argument %q: there are flags only", flag.Arg(0))
	}
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || socket == "" {
		return errors.New("--endpoint must be unix:///path/to/csi.sock")
	}
	driver, err := local.New(config)
	if err != nil {
		return err
	}
	l, err := local.Listen(socket)
	if err != nil {
		return err
	}
	return driver.Serve(ctx, l)
}
