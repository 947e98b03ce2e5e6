package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sctpTime bounds each part of a conversation by SCTP, whose own patience is minutes.
const sctpTime = 5 * time.Second

// serveSCTP answers each message on some ports, of both families, with the host's name,
// the client's address and the message.
func serveSCTP(ports []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	ended := make(chan error)
	for _, port := range ports {
		l, err := listenSCTP("[::]:" + port)
		if err != nil {
			return fmt.Errorf("listen at %s: %w", port, err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					ended <- err
					return
				}
				go answerSCTP(c, name)
			}
		}()
	}
	return <-ended
}

func answerSCTP(c net.Conn, name string) {
	defer c.Close()
	for buf := make([]byte, 1500); ; {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(c, "%s %s %s", name, c.RemoteAddr(), buf[:n]); err != nil {
			log.Print(err)
			return
		}
	}
}

// talkSCTP makes associations one after the other and prints what the server answers in
// each; with hold it stays in one, and sends a number each fifth of a second.
func talkSCTP(args []string) error {
	flags := flag.NewFlagSet("ask-sctp", flag.ExitOnError)
	times := flags.Int("n", 1, "number of associations")
	from := flags.Uint("from", 0, "port of the client; 0: one that is free")
	hold := flags.Bool("hold", false, "stay in the first one for ever")
	_ = flags.Parse(args)
	to, err := netip.ParseAddrPort(flags.Arg(0))
	if err != nil {
		return err
	}
	for range *times {
		c, err := dialSCTP(to, uint16(*from))
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		if *hold {
			return holdSCTP(c)
		}
		err = errors.Join(sayAndHear(c, "asked"), c.Close())
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
	}
	return nil
}

func sayAndHear(c net.Conn, text string) error {
	if err := c.SetDeadline(time.Now().Add(sctpTime)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	return hear(c)
}

func hear(c net.Conn) error {
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	if err == nil {
		fmt.Println(string(buf[:n]))
	}
	return err
}

// holdSCTP ends with the association.
func holdSCTP(c net.Conn) error {
	sent := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			if _, err := fmt.Fprint(c, i); err != nil {
				sent <- err
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	for {
		if err := hear(c); err != nil {
			_ = c.Close()
			return errors.Join(err, <-sent)
		}
	}
}

// socketSCTP is a socket of one association or of a server, which Go's net takes for TCP's:
// it reads and writes alike.
func socketSCTP(a netip.Addr, only6 int) (*os.File, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if a.Is6() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only6)
	}
	f := os.NewFile(uintptr(fd), "sctp")
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), f.Close())
	}
	return f, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func listenSCTP(addr string) (net.Listener, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	f, err := socketSCTP(a.Addr(), 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Bind(int(f.Fd()), sockaddr(a)); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(int(f.Fd()), 128); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}

// dialSCTP begins an association from a port, in sctpTime.
func dialSCTP(to netip.AddrPort, from uint16) (net.Conn, error) {
	f, err := socketSCTP(to.Addr(), 1)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, patience := int(f.Fd()), unix.NsecToTimeval(sctpTime.Nanoseconds())
	own := netip.IPv4Unspecified()
	if to.Addr().Is6() {
		own = netip.IPv6Unspecified()
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(own, from))); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	for end := time.Now().Add(sctpTime); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Connect(fd, sockaddr(to))
		if err == nil || err == unix.EISCONN {
			return net.FileConn(f)
		}
		// Go's signals interrupt the call, and the association goes on.
		if err != unix.EINTR && err != unix.EALREADY || time.Now().After(end) {
			return nil, os.NewSyscallError("connect", err)
		}
	}
}
