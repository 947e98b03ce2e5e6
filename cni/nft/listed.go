package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Listed is what is read of a base chain that another program made.
type Listed struct {
	Accepts bool // is its policy
	Rules   []ListedRule
}

// ListedRule is one of its rules. What it does is not read.
type ListedRule struct {
	Handle  uint64
	Comment string
}

// List reads a base chain, nil if there is none. It takes little: two requests, of which
// the kernel answers the first with an error where there is no such table.
func (c *Conn) List(t Table, chain string) (*Listed, error) {
	l, err := c.list(t, chain)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read nftables chain %s of table %s: %w", chain, t, err)
	}
	return l, nil
}

func (c *Conn) list(t Table, chain string) (*Listed, error) {
	answers, err := c.ask(t, unix.NFT_MSG_GETCHAIN, 0,
		attribute{unix.NFTA_CHAIN_TABLE, t.Name}, attribute{unix.NFTA_CHAIN_NAME, chain})
	if err != nil {
		return nil, err
	}
	var l Listed
	base := false
	for _, m := range answers {
		b, accepts, err := parseChain(m.Data)
		if err != nil {
			return nil, err
		}
		base, l.Accepts = base || b, l.Accepts || accepts
	}
	if !base {
		return nil, nil
	}
	answers, err = c.ask(t, unix.NFT_MSG_GETRULE, netlink.Dump,
		attribute{unix.NFTA_RULE_TABLE, t.Name}, attribute{unix.NFTA_RULE_CHAIN, chain})
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		r, err := parseRule(m.Data)
		if err != nil {
			return nil, err
		}
		l.Rules = append(l.Rules, r)
	}
	return &l, nil
}

type attribute struct {
	kind uint16
	text string
}

// ask asks for what has these names; ENOENT: there is none.
func (c *Conn) ask(t Table, what uint16, how netlink.HeaderFlags, by ...attribute) ([]netlink.Message, error) {
	if c.asks == nil {
		nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return nil, fmt.Errorf("open nftables: %w", err)
		}
		c.asks = nl
	}
	e := netlink.NewAttributeEncoder()
	for _, a := range by {
		e.String(a.kind, a.text)
	}
	attributes, err := e.Encode()
	if err != nil {
		return nil, err
	}
	answers, err := c.asks.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | what),
			Flags: netlink.Request | how,
		},
		// struct nfgenmsg: family, version, resource id.
		Data: append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		c.Close() // what is still to be read must not meet the next question
	}
	return answers, err
}

// genHeader is the length of struct nfgenmsg.
const genHeader = 4

func decode(data []byte) (*netlink.AttributeDecoder, error) {
	if len(data) < genHeader {
		return nil, errors.New("a short message")
	}
	d, err := netlink.NewAttributeDecoder(data[genHeader:])
	if err == nil {
		d.ByteOrder = binary.BigEndian
	}
	return d, err
}

// parseChain tells whether a chain has a hook, and whether its policy is to accept.
func parseChain(data []byte) (base, accepts bool, err error) {
	d, err := decode(data)
	if err != nil {
		return false, false, err
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_CHAIN_HOOK:
			base = true
		case unix.NFTA_CHAIN_POLICY:
			accepts = d.Uint32() == nfAccept
		}
	}
	return base, accepts, d.Err()
}

// nfAccept is of linux/netfilter.h.
const nfAccept = 1

func parseRule(data []byte) (r ListedRule, err error) {
	d, err := decode(data)
	if err != nil {
		return r, err
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_HANDLE:
			r.Handle = d.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.Comment = comment(d.Bytes())
		}
	}
	return r, d.Err()
}

// comment finds a rule's comment in what programs keep with it: kinds, lengths, data.
func comment(data []byte) string {
	const kindComment = 0
	for len(data) >= 2 {
		kind, n, rest := data[0], int(data[1]), data[2:]
		if n > len(rest) {
			return ""
		}
		if kind == kindComment {
			text := rest[:n]
			for len(text) > 0 && text[len(text)-1] == 0 {
				text = text[:len(text)-1]
			}
			return string(text)
		}
		data = rest[n:]
	}
	return ""
}
