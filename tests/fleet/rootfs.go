package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packages of the machines beside Debian's minimal set. The kernel and the
// initial RAM disk are for QEMU.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "libpam-systemd", "iproute2", "nftables", "runc", "crun", "conmon", "procps",
	"util-linux", "kmod", "ca-certificates", "apparmor", "linux-image-cloud-amd64", "busybox-static", "curl",
	"rpm",
}

// files of every machine; those of one kind of machine start when their
// condition holds.
var files = map[string]string{
	"etc/hostname":                       "machine\n",
	"etc/hosts":                          "127.0.0.1 localhost\n",
	"etc/resolv.conf":                    "nameserver 192.0.2.53\n",
	"etc/systemd/network/10-lan.network": "[Match]\nName=host0 eth0\n[Network]\nAddress=10.97.0.2/24\nGateway=10.97.0.1\nLinkLocalAddressing=no\n",
	// runc needs the v1 controllers, which nspawn mounts read-only.
	"etc/systemd/system/fleet-cgroups.service": "[Unit]\nConditionVirtualization=systemd-nspawn\nBefore=shoal-agent.service\n" +
		"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'for c in /sys/fs/cgroup/*; do mount -o remount,bind,rw $c || true; done'\n[Install]\nWantedBy=sysinit.target\n",
	"etc/systemd/system/fleet-shell.service": "[Unit]\nConditionVirtualization=vm\nAfter=network-online.target dbus.service\nWants=network-online.target\n" +
		"[Service]\nExecStart=/bin/sh /etc/fleet-shell\nKillMode=process\nDelegate=yes\n[Install]\nWantedBy=multi-user.target\n",
	"etc/fleet-shell":               guestShell,
	"etc/modules-load.d/fleet.conf": "virtio_console\nvirtio_net\n",
}

// needs fails when a program is not there, and names the package that has it.
func needs(program, pkg string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is not installed: apt-get install %s", program, pkg)
	}
	return nil
}

// makeRootfs makes cache/rootfs of packages, which stays until what goes into it changes.
func makeRootfs(ctx context.Context, cache string, packages []string) error {
	if err := errors.Join(needs("mmdebstrap", "mmdebstrap"), needs("systemd-nspawn", "systemd-container")); err != nil {
		return err
	}
	root := filepath.Join(cache, "rootfs")
	err := once(filepath.Join(cache, "packages"), packages, func() error {
		fmt.Println("making the machines' root file system in", cache)
		if err := errors.Join(os.RemoveAll(cache), os.MkdirAll(cache, 0o755)); err != nil {
			return err
		}
		return command(ctx, "mmdebstrap", "--quiet", "--variant=minbase",
			"--include="+strings.Join(packages, ","), "bookworm", root)
	})
	if err != nil {
		return err
	}
	return once(filepath.Join(cache, "files"), files, func() error { return customize(ctx, root) })
}

// makeDisk makes cache/disk.img of cache/rootfs, with vmlinuz and initrd.img beside it.
func makeDisk(ctx context.Context, cache string) error {
	if err := errors.Join(needs("qemu-system-x86_64", "qemu-system-x86"), needs("mkfs.ext4", "e2fsprogs")); err != nil {
		return err
	}
	root := filepath.Join(cache, "rootfs")
	return once(filepath.Join(cache, "disk"), []any{packages, files}, func() error {
		for from, to := range map[string]string{"boot/vmlinuz-*": "vmlinuz", "boot/initrd.img-*": "initrd.img"} {
			found, err := filepath.Glob(filepath.Join(root, from))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%s: %d files: %w", from, len(found), errors.Join(err, fs.ErrNotExist))
			}
			if err := command(ctx, "cp", found[0], filepath.Join(cache, to)); err != nil {
				return err
			}
		}
		return pack(ctx, filepath.Join(cache, "disk.img"), root, "4G")
	})
}

// once does what was not done before with the same input, by the mark that it
// leaves in a file.
func once(file string, input any, do func() error) error {
	sum := sha256.Sum256(fmt.Append(nil, input)) // maps print sorted
	key := hex.EncodeToString(sum[:])
	if b, err := os.ReadFile(file); err == nil && string(b) == key {
		return nil
	}
	if err := do(); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(key), 0o644)
}

func customize(ctx context.Context, root string) error {
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		_ = os.Remove(path) // may be a link
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	// By chroot: the machine's own systemctl knows its units.
	return command(ctx, "chroot", root, "systemctl", "enable", "-q", "systemd-networkd", "systemd-networkd-wait-online",
		"fleet-cgroups", "fleet-shell")
}

// pack packs a directory into a file system of a size; the file is sparse.
func pack(ctx context.Context, image, dir, size string) error {
	return command(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E",
		"lazy_itable_init=1", "-d", dir, image, size)
}

// command runs a program; its output is part of the error.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
