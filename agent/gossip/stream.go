package gossip

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A stream carries one request and at most one answer. Each is a head, which
// proves who speaks before anything large is read, and a body. The head holds
// the speaker's name and grant, so that two members meet by a stream, and know
// each other's keys from then on.
//
//	form, length of head (2 bytes), head: sealed with the shared key if there is one
//	head: name, grant, length and hash of the body, signature
const (
	maxHead = 1024
	// maxBody is the state of about 16,000 members.
	maxBody = 16 << 20

	// requestTimeout is how long a stream may take to say all of its request.
	requestTimeout = 10 * time.Second
)

const streamContext = "shoal gossip stream 1"

var errStream = errors.New("stream is not from a known member")

// writeMessage writes one message; answered is the head that it answers.
func (g *Group) writeMessage(w io.Writer, b, answered []byte) (head []byte, err error) {
	form := byte(formPlain)
	r := g.cfg.Keys.current()
	if r != nil {
		form = formShared
		if b, err = seal(nil, r.whole[0], b, nil); err != nil {
			return nil, err
		}
	}
	own, grant := g.credential()
	hash := sha256.Sum256(b)
	head = appendValue(nil, []byte(g.cfg.Name))
	head = appendValue(head, grant)
	head = binary.AppendUvarint(head, uint64(len(b)))
	head = append(head, hash[:]...)
	var sig []byte
	if own != nil {
		if sig, err = own.sign(streamContext, answered, head); err != nil {
			return nil, err
		}
	}
	head = appendValue(head, sig)
	if r != nil {
		if head, err = seal(nil, r.whole[0], head, []byte{form}); err != nil {
			return nil, err
		}
	}
	out := binary.BigEndian.AppendUint16([]byte{form}, uint16(len(head)))
	out = append(append(out, head...), b...)
	_, err = w.Write(out)
	return head, err
}

// readMessage reads one message, at most as much as its head, which is checked
// first, allows.
func (g *Group) readMessage(c io.Reader, answered []byte) (body, rawHead []byte, from *peer, err error) {
	var first [3]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return nil, nil, nil, err
	}
	r := g.cfg.Keys.current()
	size := int(binary.BigEndian.Uint16(first[1:]))
	if size > maxHead || (first[0] == formShared) != (r != nil) || first[0] > formShared {
		return nil, nil, nil, errStream
	}
	rawHead = make([]byte, size)
	if _, err := io.ReadFull(c, rawHead); err != nil {
		return nil, nil, nil, err
	}
	head := rawHead
	if r != nil {
		if head, err = open(r.whole, rawHead, first[:1]); err != nil {
			return nil, nil, nil, errStream
		}
	}
	from, length, hash, err := g.checkHead(head, answered)
	if err != nil {
		return nil, nil, nil, err
	}
	var sealed bytes.Buffer
	if _, err := io.CopyN(&sealed, c, int64(length)); err != nil {
		return nil, nil, nil, err
	}
	if sha256.Sum256(sealed.Bytes()) != hash {
		return nil, nil, nil, errStream
	}
	body = sealed.Bytes()
	if r != nil {
		if body, err = open(r.whole, body, nil); err != nil {
			return nil, nil, nil, errStream
		}
	}
	return body, rawHead, from, nil
}

// checkHead returns who speaks, and length and hash of what it says.
func (g *Group) checkHead(head, answered []byte) (from *peer, length int, hash [sha256.Size]byte, err error) {
	name, rest, ok1 := nextValue(head)
	grant, rest, ok2 := nextValue(rest)
	n, size := binary.Uvarint(rest)
	if !ok1 || !ok2 || size <= 0 || n > maxBody || len(rest)-size < len(hash) {
		return nil, 0, hash, errStream
	}
	rest = rest[size:]
	copy(hash[:], rest)
	rest = rest[len(hash):]
	signed := head[:len(head)-len(rest)]
	sig, rest, ok := nextValue(rest)
	if !ok || len(rest) > 0 {
		return nil, 0, hash, errStream
	}
	if !g.book.verified() {
		return nil, int(n), hash, nil
	}
	from, err = g.book.introduce(string(name), grant)
	if err == nil && !verifyWith(from.verify, sig, streamContext, answered, signed) {
		err = errUnsigned
	}
	if err != nil {
		g.book.tell(string(name), "", err)
		return nil, 0, hash, fmt.Errorf("%w: %w", errStream, err)
	}
	return from, int(n), hash, nil
}

// asked is a stream that this member opened: memberlist writes its request in
// one piece and reads the answer.
type asked struct {
	net.Conn
	g    *Group
	head []byte
	rest *bytes.Reader
}

func (a *asked) Write(b []byte) (int, error) {
	if a.head != nil {
		return 0, errors.New("a gossip stream has one request")
	}
	head, err := a.g.writeMessage(a.Conn, b, nil)
	if err != nil {
		return 0, err
	}
	a.head = head
	return len(b), nil
}

func (a *asked) Read(b []byte) (int, error) {
	if a.rest == nil {
		body, _, _, err := a.g.readMessage(a.Conn, a.head)
		if err != nil {
			return 0, err
		}
		if body, err = a.g.filterStream(body, a.g.alone()); err != nil {
			return 0, err
		}
		a.rest = bytes.NewReader(body)
	}
	return a.rest.Read(b)
}

// answering is a stream that another member opened, once its request is read.
type answering struct {
	net.Conn
	g    *Group
	head []byte
	body *bytes.Reader
	once sync.Once
	done func()
}

func (a *answering) Read(b []byte) (int, error) { return a.body.Read(b) }

func (a *answering) Write(b []byte) (int, error) {
	if _, err := a.g.writeMessage(a.Conn, b, a.head); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (a *answering) Close() error {
	a.once.Do(a.done)
	return a.Conn.Close()
}
