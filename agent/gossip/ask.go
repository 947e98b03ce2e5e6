package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// msgQuestion begins a question of one member to another and its answer, which no part
// of memberlist sees. They are a stream of their own: its heads prove who speaks, and the
// answer's that it is to this question. It is none of memberlist's types.
const msgQuestion = 64

// Limits of a question and its answer.
const (
	maxQuestion = 4 << 10
	// maxAsked is what is read of an answer, its head included.
	maxAsked = maxQuestion + maxHead + 1<<10
	askTime  = 5 * time.Second
)

var errNotVerified = errors.New("the gossip verifies nobody, so that nobody's word counts")

// Ask asks another member, and returns what it answers. Errors: it is not known, not
// reached, or answers no questions; the group is not verified.
func (g *Group) Ask(ctx context.Context, member string, question []byte) ([]byte, error) {
	if !g.book.verified() {
		return nil, errNotVerified
	}
	if len(question) > maxQuestion {
		return nil, fmt.Errorf("question of %d bytes; at most %d are sent", len(question), maxQuestion)
	}
	g.mu.Lock()
	m, ok := g.members[member]
	g.mu.Unlock()
	if !ok || !m.Addr.IsValid() {
		return nil, fmt.Errorf("ask %s: %w", member, errUnknown)
	}
	answer, err := g.ask(ctx, m, question)
	if err != nil {
		return nil, fmt.Errorf("ask %s at %s: %w", member, m.Addr, err)
	}
	return answer, nil
}

func (g *Group) ask(ctx context.Context, m Member, question []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	deadline, _ := ctx.Deadline()
	c, err := g.transport.inner.DialTimeout(m.Addr.String(), time.Until(deadline))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	// For whom it is stands in it, else another could have it answered by a third.
	head, err := g.writeMessage(c, append(appendValue([]byte{msgQuestion}, []byte(m.Name)), question...), nil)
	if err != nil {
		return nil, err
	}
	body, _, from, err := g.readMessage(io.LimitReader(c, maxAsked), head)
	switch {
	case err != nil:
		return nil, err
	case from == nil || from.name != m.Name:
		return nil, errStream
	case len(body) == 0 || body[0] != msgQuestion:
		return nil, errMessage
	}
	return body[1:], nil
}

// answer answers a question; the stream is closed by the caller.
func (g *Group) answer(c net.Conn, head, body []byte, from *peer) error {
	to, question, ok := nextValue(body[1:])
	switch {
	case from == nil:
		return errNotVerified
	case !ok || string(to) != g.cfg.Name || len(question) > maxQuestion:
		return errMessage
	case bytes.Equal(question, whereQuestion):
		_, err := g.writeMessage(c, append([]byte{msgQuestion}, addrOf(c.RemoteAddr()).AsSlice()...), head)
		return err
	case g.cfg.Answer == nil:
		return errNotVerified
	}
	said := g.cfg.Answer(from.name, from.grant.Role, bytes.Clone(question))
	if said == nil {
		return errMessage
	}
	_, err := g.writeMessage(c, append([]byte{msgQuestion}, said...), head)
	return err
}
