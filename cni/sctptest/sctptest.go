// Package sctptest makes packets of SCTP (RFC 9260) for tests that send them by raw sockets:
// conntrack, NAT and filters know the protocol on kernels that have no sockets of it.
package sctptest

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Types of chunks, and of the parameter that holds a cookie.
const (
	ChunkInit       = 1
	ChunkInitAck    = 2
	ChunkCookieEcho = 10
	ChunkCookieAck  = 11
	ParameterCookie = 7
)

// InitSize is that of an INIT chunk without parameters; with Beginning's value and a cookie,
// the cookie begins there.
const InitSize = 20

const header = 12

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Message is a packet with one chunk.
type Message struct {
	From, To uint16 // ports
	Tag      uint32
	Chunk    byte
	Value    []byte // of the chunk
}

// Bytes are what goes into a packet of IP.
func (m Message) Bytes() []byte {
	b := make([]byte, header, header+4+len(m.Value)+3)
	binary.BigEndian.PutUint16(b, m.From)
	binary.BigEndian.PutUint16(b[2:], m.To)
	binary.BigEndian.PutUint32(b[4:], m.Tag)
	b = binary.BigEndian.AppendUint16(append(b, m.Chunk, 0), uint16(4+len(m.Value)))
	b = append(b, m.Value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// Parse reads the first chunk of what a packet of IP holds, and checks the sum.
func Parse(b []byte) (Message, error) {
	if len(b) < header+4 {
		return Message{}, errors.New("too short")
	}
	clean := append([]byte(nil), b...)
	copy(clean[8:12], []byte{0, 0, 0, 0})
	if crc32.Checksum(clean, castagnoli) != binary.LittleEndian.Uint32(b[8:]) {
		return Message{}, errors.New("the checksum is wrong")
	}
	size := int(binary.BigEndian.Uint16(b[header+2:]))
	if size < 4 || header+size > len(b) {
		return Message{}, errors.New("a chunk that is longer than its packet")
	}
	return Message{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]),
		b[header], b[header+4 : header+size]}, nil
}

// Beginning is the value of an INIT or INIT ACK: tag, window, streams, number.
func Beginning(tag uint32) []byte {
	v := binary.BigEndian.AppendUint32(nil, tag)
	v = binary.BigEndian.AppendUint32(v, 65536)
	v = append(v, 0, 1, 0, 1)
	return binary.BigEndian.AppendUint32(v, 1)
}
