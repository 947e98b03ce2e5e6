package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// guestShell does the rig's jobs inside a virtual machine: one base64 line in,
// one line with exit code and base64 output back. Without udev the port has
// only its kernel name.
const guestShell = `#!/bin/sh
for i in 1 2 3 4 5 6 7 8 9; do set -- /dev/vport*; [ -c "$1" ] && break; modprobe virtio_console; sleep 1; done
exec 3<>"$1"
echo ready >&3
while read -r job <&3; do
	echo "$job" | base64 -d >/run/fleet-job
	sh /run/fleet-job >/run/fleet-out 2>&1 </dev/null 3<&-
	echo "$? $(base64 -w0 /run/fleet-out)" >&3
done
`

// vm is a QEMU machine. Its disk is the shared root file system, of which it
// keeps no changes, and a second one with what the scenario needs, at /fleet.
type vm struct {
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
	conn net.Conn
	in   *bufio.Reader
}

const bootTime = 8 * time.Minute

// useInstallation has a machine take what installation put on its second disk.
const useInstallation = `mount -o ro /dev/vdb /mnt
cp -a /mnt/install/. /
mkdir -p /var/lib/shoal; cp -r /mnt/images /var/lib/shoal/images
`

// installation puts the programs and the images for tests into a payload.
func (r *rig) installation(ctx context.Context) func(payload string) error {
	return func(payload string) error {
		return errors.Join(r.install(ctx, filepath.Join(payload, "install")), r.images(filepath.Join(payload, "images")))
	}
}

// onMachine boots the scenario's machine, runs its steps and removes it. What fill puts into
// the payload is on the machine's second disk.
func (r *rig) onMachine(ctx context.Context, fill func(payload string) error, steps func(*vm)) (err error) {
	dir := filepath.Join(r.dir, r.name)
	payload := filepath.Join(dir, "payload")
	if err := fill(payload); err != nil {
		return err
	}
	v, ok := r.boot(ctx, dir, payload, "")
	if !ok {
		return nil
	}
	defer func() { err = errors.Join(err, v.remove()) }()
	defer r.showOnFailure(v)
	steps(v)
	return nil
}

// boot is the step that starts a scenario's machine; payload is packed into its second
// disk, kernel added to the kernel's command line.
func (r *rig) boot(ctx context.Context, dir, payload, kernel string) (v *vm, ok bool) {
	ok = r.step(ctx, "the virtual machine boots", func(ctx context.Context) (_ string, err error) {
		v, err = bootVM(ctx, dir, r.cache, payload, r.accel, kernel)
		return "", err
	})
	return v, ok
}

func bootVM(ctx context.Context, dir, cache, payload, accel, kernel string) (*vm, error) {
	second := filepath.Join(dir, "payload.img")
	if err := errors.Join(makeDisk(ctx, cache), pack(ctx, second, payload, "2G")); err != nil {
		return nil, err
	}
	console, err := os.Create(filepath.Join(dir, "console.log"))
	if err != nil {
		return nil, err
	}
	defer console.Close()
	v := &vm{dir: dir, done: make(chan struct{})}
	socket := filepath.Join(dir, "shell.sock")
	v.cmd = exec.Command("qemu-system-x86_64", "-M", "q35", "-accel", accel, "-cpu", "max", "-smp", "2", "-m", "2048",
		"-nographic", "-nodefaults", "-serial", "file:"+filepath.Join(dir, "serial.log"),
		"-kernel", filepath.Join(cache, "vmlinuz"), "-initrd", filepath.Join(cache, "initrd.img"),
		"-append", "console=ttyS0 psi=1 root=/dev/vda rw quiet systemd.show_status=0 net.ifnames=0 "+kernel,
		"-drive", "file="+filepath.Join(cache, "disk.img")+",if=virtio,format=raw,cache=unsafe,snapshot=on",
		"-drive", "file="+second+",if=virtio,format=raw,cache=unsafe,snapshot=on",
		"-netdev", "user,id=lan,restrict=on", "-device", "virtio-net-pci,netdev=lan,romfile=",
		"-device", "virtio-serial", "-chardev", "socket,id=shell,path="+socket+",server=on,wait=on", "-device", "virtserialport,chardev=shell")
	v.cmd.Stdout, v.cmd.Stderr = console, console
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	v.cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = v.cmd.Wait(); close(v.done) }()
	if err := v.greet(ctx, socket); err != nil {
		text, _ := os.ReadFile(console.Name())
		return nil, errors.Join(fmt.Errorf("%w: %s", err, bytes.TrimSpace(text)), v.remove())
	}
	return v, nil
}

// greet connects and waits for the guest's shell.
func (v *vm) greet(ctx context.Context, socket string) error {
	var err error
	for range 100 { // no event tells of a socket
		if v.conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	v.in = bufio.NewReader(v.conn)
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	line, err := v.line(ctx)
	if err == nil && line != "ready" {
		err = fmt.Errorf("the guest's shell said %q", line)
	}
	return err
}

// line reads one, or fails when the context or the machine ends.
func (v *vm) line(ctx context.Context) (string, error) {
	stop := context.AfterFunc(ctx, func() { v.conn.Close() })
	defer stop()
	text, err := v.in.ReadString('\n')
	if err != nil {
		return "", errors.Join(ctx.Err(), err)
	}
	return strings.TrimSpace(text), nil
}

func (v *vm) sh(ctx context.Context, script string) (string, error) {
	job := base64.StdEncoding.EncodeToString([]byte(prelude + script))
	if _, err := fmt.Fprintln(v.conn, job); err != nil {
		return "", err
	}
	line, err := v.line(ctx)
	if err != nil {
		return "", err
	}
	code, encoded, _ := strings.Cut(line, " ")
	out, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("answer of the guest's shell: %w", err)
	}
	text := string(bytes.TrimSpace(out))
	if n, err := strconv.Atoi(code); err != nil || n != 0 {
		return text, fmt.Errorf("exit status %s: %s", code, text)
	}
	return text, nil
}

// remove ends the machine; its disks go with the rig's directory.
func (v *vm) remove() error {
	if v.conn != nil {
		v.conn.Close()
	}
	err := v.cmd.Process.Kill()
	<-v.done
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
