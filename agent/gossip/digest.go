package gossip

import (
	"encoding/binary"
	"slices"
)

// Digest is what a member tells of itself with each answer to a probe, for people who
// look at its neighbours' views (shoal members). Nothing is decided by it, so that it is
// neither signed nor passed on: of many members each one's is some minutes old.
type Digest struct {
	Version string
	Pods    int
	// Pressure is what is short there.
	Pressure []Pressure
}

// Pressure is a thing that a machine can be short of.
type Pressure string

// The pressures; their order is that of the bits on the wire.
const (
	MemoryPressure Pressure = "memory"
	DiskPressure   Pressure = "disk"
	PIDPressure    Pressure = "pid"
)

var pressures = []Pressure{MemoryPressure, DiskPressure, PIDPressure}

// The wire form is one version byte and fields as those of a statement.
const (
	digestVersion = 1

	tagVersion  = 1
	tagPods     = 2
	tagPressure = 3

	maxDigest  = 128
	maxVersion = 64
	maxPods    = 1 << 20
)

func (d Digest) encode() []byte {
	b := []byte{digestVersion}
	b = appendField(b, tagVersion, []byte(d.Version[:min(len(d.Version), maxVersion)]))
	b = appendNumber(b, tagPods, uint64(min(max(d.Pods, 0), maxPods)))
	bits := uint64(0)
	for i, p := range pressures {
		if slices.Contains(d.Pressure, p) {
			bits |= 1 << i
		}
	}
	return appendNumber(b, tagPressure, bits)
}

// decodeDigest reads what another member answered; ok is false for what is none.
func decodeDigest(b []byte) (d Digest, ok bool) {
	if len(b) == 0 || len(b) > maxDigest || b[0] != digestVersion {
		return d, false
	}
	for rest := b[1:]; len(rest) > 0; {
		var tag uint64
		var value []byte
		if tag, value, rest, ok = nextField(rest); !ok {
			return Digest{}, false
		}
		switch tag {
		case tagVersion:
			if len(value) > maxVersion {
				return Digest{}, false
			}
			d.Version = string(value)
		case tagPods:
			n, size := binary.Uvarint(value)
			if size != len(value) || n > maxPods {
				return Digest{}, false
			}
			d.Pods = int(n)
		case tagPressure:
			bits, size := binary.Uvarint(value)
			if size != len(value) {
				return Digest{}, false
			}
			d.Pressure = nil
			for i, p := range pressures {
				if bits&(1<<i) != 0 {
					d.Pressure = append(d.Pressure, p)
				}
			}
		}
	}
	return d, true
}

// SetDigest has this member answer probes with d from now on.
func (g *Group) SetDigest(d Digest) {
	d.Pressure = slices.Clone(d.Pressure)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.digest, g.digests[g.cfg.Name] = d.encode(), d
}
