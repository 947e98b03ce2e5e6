package withdraw

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/shoal-project/shoal/agent/service"
)

// Magic begins each question among those that members of the gossip ask each other.
const Magic = 'E'

// Limits of a question, which the gossip bounds too (4 KiB).
const (
	version      = 1
	maxQuestion  = 4 << 10
	maxEndpoints = 256
	maxName      = 253 // of a namespace or a Service: RFC 1123's longest
)

var errMalformed = errors.New("malformed question about endpoints")

// ask encodes a question about as many of the endpoints as fit, at most maxEndpoints, and
// returns the rest. Its form is Magic, a version, and for each endpoint the Service's
// namespace and name, each after its length, then the address in 16 bytes and the port in two.
func ask(list []service.EndpointOf) (question []byte, rest []service.EndpointOf) {
	b := []byte{Magic, version}
	for i, e := range list {
		if i == maxEndpoints || len(b)+len(e.Service.Namespace)+len(e.Service.Name)+20 > maxQuestion {
			return b, list[i:]
		}
		b = append(append(b, byte(len(e.Service.Namespace))), e.Service.Namespace...)
		b = append(append(b, byte(len(e.Service.Name))), e.Service.Name...)
		a := e.Addr.Addr().As16()
		b = binary.BigEndian.AppendUint16(append(b, a[:]...), e.Addr.Port())
	}
	return b, nil
}

// parse is ask's other side.
func parse(b []byte) (out []service.EndpointOf, err error) {
	if len(b) < 2 || len(b) > maxQuestion || b[0] != Magic || b[1] != version {
		return nil, errMalformed
	}
	for b = b[2:]; len(b) > 0; {
		var e service.EndpointOf
		for _, to := range []*string{&e.Service.Namespace, &e.Service.Name} {
			if len(b) == 0 || int(b[0]) > maxName || len(b) <= int(b[0]) {
				return nil, errMalformed
			}
			*to, b = string(b[1:1+b[0]]), b[1+b[0]:]
		}
		if len(b) < 18 || len(out) == maxEndpoints {
			return nil, errMalformed
		}
		a := netip.AddrFrom16([16]byte(b)).Unmap()
		e.Addr, b = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[16:])), b[18:]
		out = append(out, e)
	}
	return out, nil
}

// An answer is a version and one byte an endpoint.
const (
	withdrawn = 0 // nothing new goes there
	carried   = 1 // new connections are led there
)
