// Command shoal-tunnel is a node's encrypted tunnel to other nodes where the kernel has no
// WireGuard: a TUN interface, a UDP socket, and the protocol between them. It is a process
// of its own so that pods' packets pass while the agent is away. The agent starts it, tells
// it keys and peers by a socket in WireGuard's own language
// (https://www.wireguard.com/xplatform/), and ends it by deleting the interface.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"os/user"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// memory is what the garbage collector keeps below: most of it is buffers of packets.
const memory = 64 << 20

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-tunnel:", err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("interface", "", "name of the TUN interface to make")
	socket := flag.String("socket", "", "where it is told keys and peers")
	root := flag.String("root", "", "an empty directory, all that it sees of the file system")
	flag.Parse()
	if *name == "" || *socket == "" || *root == "" {
		return errors.New("-interface, -socket and -root must be given")
	}
	debug.SetMemoryLimit(memory)
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP) // a session that ends takes nobody with it
	uid, gid := account()
	link, err := tun.CreateTUN(*name, device.DefaultMTU)
	if err != nil {
		return fmt.Errorf("make interface %s: %w (it takes the kernel's CONFIG_TUN)", *name, err)
	}
	control, err := listen(*socket)
	if err != nil {
		return errors.Join(err, link.Close())
	}
	if err := confine(*root, uid, gid); err != nil {
		return errors.Join(err, link.Close())
	}
	log := device.NewLogger(device.LogLevelError, "shoal-tunnel: ")
	d := device.NewDevice(link, conn.NewDefaultBind(), log)
	go func() {
		for {
			c, err := control.Accept()
			if err != nil {
				return
			}
			go d.IpcHandle(c)
		}
	}()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	select {
	case <-d.Wait(): // somebody deleted the interface
	case <-stop:
	}
	_ = control.Close()
	d.Close()
	return nil
}

// account is whom the process becomes: a user of its own where the packages made one.
func account() (uid, gid int) {
	const nobody = 65534
	u, err := user.Lookup("shoal-tunnel")
	if err != nil {
		return nobody, nobody
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	if uerr != nil || gerr != nil || uid == 0 {
		return nobody, nobody
	}
	return uid, gid
}

// listen takes the place of a socket that a killed process left. Root alone may connect.
func listen(socket string) (*net.UnixListener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.SetUnlinkOnClose(false) // it cannot: the directory is out of its sight
	return l, nil
}

// confine leaves the process what it has opened, and sockets of the network.
func confine(root string, uid, gid int) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	for _, s := range []struct {
		what string
		do   func() error
	}{
		{"see an empty directory alone", func() error { return errors.Join(syscall.Chroot(root), syscall.Chdir("/")) }},
		{"be in no group", func() error { return syscall.Setgroups(nil) }},
		{"be of its group", func() error { return syscall.Setresgid(gid, gid, gid) }},
		{"be its user", func() error { return syscall.Setresuid(uid, uid, uid) }}, // gives up all capabilities
		{"gain nothing", func() error {
			_, _, e := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0)
			if e != 0 {
				return e
			}
			return nil
		}},
	} {
		if err := s.do(); err != nil {
			return fmt.Errorf("cannot %s: %w", s.what, err)
		}
	}
	return nil
}
