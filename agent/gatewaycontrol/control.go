// Package gatewaycontrol is how the agent talks to its gateway proxy, which is another
// process: over a unix socket that only root can reach, in frames with sockets beside
// them.
//
//	proxy  Hello, with the sockets that it has
//	agent  Order, with sockets that it is to have
//	proxy  Done, for each Order, with the metrics if they were asked for
//
// The proxy listens, on a socket that the agent made: so each of the two may begin anew
// while the other goes on. A socket stays open in both, and what waits in it is lost only
// when both have ended.
package gatewaycontrol

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// SocketFD is the descriptor on which the proxy is given the socket that it listens on.
const SocketFD = 3

// MaxFrame bounds a frame: a configuration with the addresses of its backends.
const MaxFrame = gatewayfeed.MaxLine + 64<<20

// MaxAnswer bounds what the agent takes of the proxy, which faces clients: its metrics.
const MaxAnswer = 4 << 20

// MaxSockets is how many sockets go with a frame; the kernel takes 253 (SCM_MAX_FD).
const MaxSockets = 200

// Hello is what the proxy says first. More follow while More is set.
type Hello struct {
	Program string   `json:"program"` // its file's identity, so that an upgrade is seen
	Sockets []string `json:"sockets,omitempty"`
	More    bool     `json:"more,omitempty"`
}

// Order is what the agent has the proxy do. What is nil stays as it is.
type Order struct {
	// Sockets are the names of those beside the frame.
	Sockets []string `json:"sockets,omitempty"`
	// Keep, with Config, are all names that go on; other sockets are closed.
	Keep     []string                    `json:"keep,omitempty"`
	Config   *gatewayfeed.Config         `json:"config,omitempty"`
	Backends map[string][]netip.AddrPort `json:"backends,omitempty"`
	// AccessLog, with Config: requests are logged.
	AccessLog bool `json:"accessLog,omitempty"`
	Metrics   bool `json:"metrics,omitempty"`
	// End has the proxy finish what is under way, and end.
	End bool `json:"end,omitempty"`
}

// Done answers an order.
type Done struct {
	// Fault is what of the configuration does not work; the rest does.
	Fault   string `json:"fault,omitempty"`
	Metrics string `json:"metrics,omitempty"`
}

// Conn is a connection between the two.
type Conn struct {
	c    *net.UnixConn
	most int // bytes of a frame that is received
}

// NewConn is one over a unix socket, for frames of up to most bytes.
func NewConn(c *net.UnixConn, most int) *Conn { return &Conn{c, most} }

// Close ends it.
func (c *Conn) Close() error { return c.c.Close() }

// SetDeadline is when the other side must have answered.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// ByRoot tells whether the other process is root's, or of the same user.
func (c *Conn) ByRoot() error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var perr error
	err = raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, perr); err != nil {
		return err
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Getuid() {
		return fmt.Errorf("user %d may not command the proxy", peer.Uid)
	}
	return nil
}

// Send sends a frame, with files beside it.
func (c *Conn) Send(message any, files ...*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("a frame has %d bytes, more than %d", len(body), MaxFrame)
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := c.c.WriteMsgUnix(header, rights, nil); err != nil {
		return err
	}
	_, err = c.c.Write(body)
	return err
}

// Receive reads a frame, and the files beside it, which the caller closes.
func (c *Conn) Receive(message any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	header, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4*MaxSockets))
	n, nr, flags, _, err := c.c.ReadMsgUnix(header, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	if files, err = taken(rights[:nr]); err != nil {
		return files, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, errors.New("more sockets beside a frame than are taken")
	}
	if _, err := io.ReadFull(c.c, header[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(header)
	if int(size) > c.most {
		return files, fmt.Errorf("a frame of %d bytes, more than %d", size, c.most)
	}
	body, err := io.ReadAll(io.LimitReader(c.c, int64(size)))
	if err != nil {
		return files, err
	}
	if len(body) < int(size) {
		return files, io.ErrUnexpectedEOF
	}
	return files, json.Unmarshal(body, message)
}

func taken(rights []byte) (files []*os.File, err error) {
	if len(rights) == 0 {
		return nil, nil
	}
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for i := range list {
		fds, perr := unix.ParseUnixRights(&list[i])
		err = errors.Join(err, perr)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "socket"))
		}
	}
	return files, err
}

// Program identifies a program's file.
func Program(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d:%d.%d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
}
