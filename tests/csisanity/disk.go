package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

// disk is what the driver's directory is on.
type disk struct {
	name string
	mkfs []string
}

var disks = []disk{
	{"ext4", []string{"mkfs.ext4", "-F", "-q"}},
	{"xfs", []string{"mkfs.xfs", "-f", "-q"}},
	{"btrfs", btrfstest.Mkfs()},
}

// diskSize holds all volumes of the suite at once. The file is sparse.
const diskSize = 12 << 30

// kind is what volumes are asked for.
type kind struct {
	name, fsType, access string
	size                 int64
}

var kinds = []kind{
	{"ext4", "ext4", "mount", 64 << 20},
	{"xfs", "xfs", "mount", 320 << 20}, // mkfs.xfs makes none below 300 MiB
	{"btrfs", "btrfs", "mount", 64 << 20},
	{"block", "ext4", "block", 64 << 20},
}

// lacks tells which program this machine has not.
func lacks(d disk, k kind) string {
	switch {
	case k.fsType == "btrfs" && d.name != "btrfs":
		return "volumes with the file system btrfs are subvolumes of the disk's own"
	case k.fsType == "btrfs" && !btrfs.KernelHasSimple():
		return "the kernel has no simple quotas (Linux 6.7)"
	}
	for _, program := range []string{"mkfs." + d.name, "mkfs." + k.fsType, "mount", "umount"} {
		if _, err := exec.LookPath(program); err != nil {
			return "no " + program
		}
	}
	return ""
}

// mount makes the disk in a directory, and returns where it is mounted.
func (d disk) mount(ctx context.Context, dir string, k kind) (string, error) {
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mnt")
	f, err := os.Create(file)
	if err != nil {
		return "", err
	}
	if err := errors.Join(f.Truncate(diskSize), f.Close(), os.Mkdir(at, 0o700)); err != nil {
		return "", err
	}
	if err := command(ctx, d.mkfs[0], append(d.mkfs[1:], file)...); err != nil {
		return "", err
	}
	if err := command(ctx, "mount", "-t", d.name, "-o", "loop", file, at); err != nil || k.fsType != "btrfs" {
		return at, err
	}
	top, err := os.Open(at)
	if err != nil {
		return "", err
	}
	return at, errors.Join(btrfs.Enable(top), top.Close())
}

// unmount fails while anything holds a file of the disk: a mount or a loop device
// that was left.
func unmount(ctx context.Context, at string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for {
		err := command(ctx, "umount", at)
		if err == nil {
			return nil
		}
		select { // the kernel ends a loop device a moment after its last mount
		case <-ctx.Done():
			return fmt.Errorf("the driver left something in use: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// driver is the program under test.
type driver struct {
	socket, data string
	cmd          *exec.Cmd
	log          bytes.Buffer
}

func (d *driver) start(ctx context.Context, bin string, k kind) error {
	d.cmd = exec.Command(filepath.Join(bin, "shoal-csi-local"), "--endpoint", "unix://"+d.socket, "--directory", d.data,
		"--node-id", "n1", "--fs-type", k.fsType)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("unix", d.socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the driver does not serve: %w", err), d.stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the driver as a service manager does; what it has to say is an error only
// when it fails.
func (d *driver) stop() error {
	err := d.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(30*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer kill.Stop()
	if err := errors.Join(err, d.cmd.Wait()); err != nil {
		return fmt.Errorf("shoal-csi-local: %w\n%s", err, d.log.Bytes())
	}
	return nil
}

// leftNothing finds what the driver still has when all was deleted.
func (d *driver) leftNothing() error {
	var errs []error
	for _, dir := range []string{"volumes", "snapshots"} {
		list, err := os.ReadDir(filepath.Join(d.data, dir))
		if err != nil {
			return err
		}
		for _, e := range list {
			errs = append(errs, fmt.Errorf("the driver left %s/%s", dir, e.Name()))
		}
	}
	return errors.Join(errs...)
}
