package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// Told is the configuration as nodes are told it: each is told of the ports that it answers on,
// and the keys that these need. What several hear is there once, however the nodes are divided.
type Told struct {
	ports        []toldPort
	certificates map[string]part
	authorities  map[string]part
	keys         map[string]bool // of all ports
	most         int             // bytes that a line may have

	mu    sync.Mutex
	lines map[string]*Line // by the ports that they have
}

// placed is a port with the nodes that answer on it; nil: all that have the proxy.
type placed struct {
	gatewayfeed.Port
	on *selection
}

type toldPort struct {
	part
	key                       string
	on                        *selection
	certificates, authorities []string // that it names
}

// part is some JSON.
type part struct {
	data []byte
	sum  [sha256.Size]byte
}

func partOf(data []byte) part { return part{data, sha256.Sum256(data)} }

// Line is what one node is told, in parts that lines of other nodes share.
type Line struct {
	Parts [][]byte
	Sum   [sha256.Size]byte // lines of one sum say the same
	keys  []string          // of ports
}

// linesMost bounds the lines that are kept: where nodes are divided in more ways, some are made
// again for each node.
const linesMost = 64

// Nothing is what nodes are told while no class asks for anything.
func Nothing() *Told {
	return &Told{lines: map[string]*Line{}}
}

// tell encodes ports with what they name. Of several with one key, no node answers on two.
func tell(ports []placed, c *gatewayfeed.Config) (*Told, error) {
	t := Nothing()
	t.certificates, t.authorities, t.keys = map[string]part{}, map[string]part{}, map[string]bool{}
	most := map[string]int{} // of the ports of a key
	for i := range ports {
		p := &ports[i]
		data, err := json.Marshal(&p.Port)
		if err != nil {
			return nil, err
		}
		named := (&gatewayfeed.Config{Ports: []gatewayfeed.Port{p.Port}, Certificates: c.Certificates,
			Authorities: c.Authorities}).Only(func(*gatewayfeed.Port) bool { return true })
		to := toldPort{part: partOf(data), key: p.Key(), on: p.on,
			certificates: slices.Sorted(maps.Keys(named.Certificates)),
			authorities:  slices.Sorted(maps.Keys(named.Authorities))}
		t.keys[to.key] = true
		most[to.key] = max(most[to.key], len(data)+1)
		for name, value := range named.Certificates {
			if err := t.name(t.certificates, name, value); err != nil {
				return nil, err
			}
		}
		for name, value := range named.Authorities {
			if err := t.name(t.authorities, name, value); err != nil {
				return nil, err
			}
		}
		t.ports = append(t.ports, to)
	}
	t.most += len(lineBegin) + len(lineEnd) + 64
	for _, n := range most {
		t.most += n
	}
	return t, nil
}

func (t *Told) name(into map[string]part, name string, value any) error {
	if _, has := into[name]; has {
		return nil
	}
	key, err := json.Marshal(name)
	if err != nil {
		return err
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	into[name] = partOf(slices.Concat(key, []byte(":"), data))
	t.most += len(into[name].data) + 1
	return nil
}

const (
	lineBegin = `{"config":{`
	lineEnd   = "}}\n"
)

var comma = []byte(",")

// Line is what a node is told.
func (t *Told) Line(node string) *Line {
	which := make([]byte, (len(t.ports)+7)/8)
	for i := range t.ports {
		if t.ports[i].on.has(node) {
			which[i/8] |= 1 << (i % 8)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[string(which)]; l != nil {
		return l
	}
	l := t.line(node)
	if len(t.lines) < linesMost {
		t.lines[string(which)] = l
	}
	return l
}

func (t *Told) line(node string) *Line {
	l := &Line{}
	sum := sha256.New()
	var ports []part
	certificates, authorities := map[string]bool{}, map[string]bool{}
	for i := range t.ports {
		p := &t.ports[i]
		if !p.on.has(node) {
			continue
		}
		ports, l.keys = append(ports, p.part), append(l.keys, p.key)
		for _, name := range p.certificates {
			certificates[name] = true
		}
		for _, name := range p.authorities {
			authorities[name] = true
		}
	}
	named := func(all map[string]part, names map[string]bool) (out []part) {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			out = append(out, all[name])
		}
		return out
	}
	add := func(text string) { l.Parts = append(l.Parts, []byte(text)) }
	add(lineBegin)
	separator := ""
	group := func(begin string, parts []part, end string) {
		if len(parts) == 0 {
			return
		}
		add(separator + begin)
		_, _ = sum.Write([]byte(begin))
		for i, p := range parts {
			if i > 0 {
				l.Parts = append(l.Parts, comma)
			}
			l.Parts = append(l.Parts, p.data)
			_, _ = sum.Write(p.sum[:])
		}
		add(end)
		separator = ","
	}
	group(`"ports":[`, ports, "]")
	group(`"certificates":{`, named(t.certificates, certificates), "}")
	group(`"authorities":{`, named(t.authorities, authorities), "}")
	add(lineEnd)
	sum.Sum(l.Sum[:0])
	return l
}

// Most bounds the bytes of a line.
func (t *Told) Most() int { return t.most }

// Leaves tells whether a node that was told before answers no more on a port that others still
// answer on.
func (t *Told) Leaves(before, now *Line) bool {
	if slices.Equal(before.keys, now.keys) {
		return false
	}
	stays := map[string]bool{}
	for _, key := range now.keys {
		stays[key] = true
	}
	return slices.ContainsFunc(before.keys, func(key string) bool { return t.keys[key] && !stays[key] })
}
