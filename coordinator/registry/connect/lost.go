package connect

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// errLost is what a client is told whose command may still run.
const errLost = "the connection to the node was lost before the command ended"

// tellLost returns where and how to ask an agent for exec or attach, so that a connection that
// breaks before the agent told how the command ended counts as a failure: to
// client-go's SPDY client a stream of errors that ends empty is a success. The transport does TLS
// itself, below the plain HTTP of the URL, to see what the agent sends. Another kind of transport
// than net/http's stays as it is.
func tellLost(location *url.URL, rt http.RoundTripper) (*url.URL, http.RoundTripper) {
	t, ok := rt.(*http.Transport)
	if !ok {
		return location, rt
	}
	t = t.Clone()
	dial, config := t.DialContext, t.TLSClientConfig
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	secure := location.Scheme == "https"
	t.TLSClientConfig = nil
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil && secure {
			conn, err = handshake(ctx, conn, config, address)
		}
		if err != nil {
			return nil, err
		}
		return &lossTeller{Conn: conn}, nil
	}
	plain := *location
	plain.Scheme = "http"
	return &plain, t
}

func handshake(ctx context.Context, conn net.Conn, config *tls.Config, address string) (net.Conn, error) {
	if config == nil {
		config = &tls.Config{}
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"} // only this can be upgraded
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

const (
	// errorStream is the first that client-go makes.
	errorStream = 1
	// frameHeader is how long the header of a SPDY frame is.
	frameHeader = 8
	// mostHead bounds the agent's HTTP answer, mostFrame a frame. What follows a longer one is
	// passed on unread.
	mostHead, mostFrame = 64 << 10, 1 << 20
)

// lossTeller is a connection that becomes SPDY with the agent's answer. It passes whole frames on,
// and adds one to the stream of errors if the connection ends and that stream had none.
type lossTeller struct {
	net.Conn
	// state is of what is read next.
	state readState
	// ready is to be read by the client, before err.
	ready bytes.Buffer
	err   error
	told  bool
}

type readState int

const (
	readHead   readState = iota // the HTTP answer
	readFrames                  // SPDY, with a Status on the stream of errors
	readRaw                     // anything else, as it comes
)

func (c *lossTeller) Read(b []byte) (int, error) {
	for c.ready.Len() == 0 {
		if c.err != nil {
			return 0, c.err
		}
		switch c.state {
		case readHead:
			c.err = c.head()
		case readFrames:
			if c.err = c.frame(); c.err != nil && !c.told {
				c.tell()
			}
		case readRaw:
			return c.Conn.Read(b)
		}
	}
	return c.ready.Read(b)
}

// head reads the answer byte by byte, to stop where the frames begin.
func (c *lossTeller) head() error {
	var head bytes.Buffer
	for !bytes.HasSuffix(head.Bytes(), []byte("\r\n\r\n")) {
		if head.Len() == mostHead {
			c.state = readRaw
			break
		}
		if _, err := io.CopyN(&head, c.Conn, 1); err != nil {
			c.ready.Write(head.Bytes())
			return err
		}
	}
	if c.state == readHead {
		c.state = readRaw
		if tellsStatus(head.String()) {
			c.state = readFrames
		}
	}
	c.ready.Write(head.Bytes())
	return nil
}

// tellsStatus: the protocols from v4 on send a Status at the end of every command, of those that
// succeed too.
func tellsStatus(head string) bool {
	first, rest, _ := strings.Cut(head, "\r\n")
	if fields := strings.Fields(first); len(fields) < 2 || fields[1] != "101" {
		return false
	}
	for line := range strings.SplitSeq(rest, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); strings.EqualFold(name, "X-Stream-Protocol-Version") {
			return value == "v4.channel.k8s.io" || value == "v5.channel.k8s.io"
		}
	}
	return false
}

// frame reads a whole frame: of one that was cut nothing is passed on.
func (c *lossTeller) frame() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(c.Conn, header[:]); err != nil {
		return err
	}
	first, second := binary.BigEndian.Uint32(header[:4]), binary.BigEndian.Uint32(header[4:])
	length := int64(second & (1<<24 - 1))
	c.ready.Write(header[:])
	if length > mostFrame {
		c.state = readRaw
		return nil
	}
	if _, err := io.CopyN(&c.ready, c.Conn, length); err != nil {
		c.ready.Reset()
		return err
	}
	if first == errorStream && length > 0 { // the first bit is 0 in frames with data
		c.told = true
	}
	return nil
}

func (c *lossTeller) tell() {
	if errors.Is(c.err, net.ErrClosed) {
		return // by ourselves: nobody reads any more
	}
	status, err := json.Marshal(metav1.Status{Status: metav1.StatusFailure, Message: errLost})
	if err != nil {
		return
	}
	var header [frameHeader]byte
	binary.BigEndian.PutUint32(header[:4], errorStream)
	binary.BigEndian.PutUint32(header[4:], uint32(len(status)))
	c.ready.Write(header[:])
	c.ready.Write(status)
}
