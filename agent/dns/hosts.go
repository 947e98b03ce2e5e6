package dns

import (
	"bufio"
	"bytes"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	maxHostsFile  = 1 << 20 // bytes
	maxHostsNames = 10000
)

// hosts answers the names of a file as hosts(5) describes it.
type hosts struct {
	file string // "" = none

	mu      sync.Mutex
	read    time.Time // when the file was looked at
	changed time.Time // its modification time
	table   hostTable
}

// hostTable are addresses by name, fully qualified and lower case, and the first name of
// each address.
type hostTable struct {
	addrs map[string][]netip.Addr
	names map[netip.Addr]string
}

// answer answers a query for a name of the file, and that of an address in it; nil for
// others. A name without an address of the type that is asked for exists.
func (h *hosts) answer(q *dns.Msg, name string, now time.Time) *dns.Msg {
	if h.file == "" {
		return nil
	}
	t := h.now(now)
	asked := q.Question[0]
	var records []dns.RR
	if addrs, ok := t.addrs[name]; ok {
		records = addresses(asked.Name, addrs, asked.Qtype)
	} else {
		a, ok := reverseAddr(name)
		first := t.names[a]
		if !ok || first == "" {
			return nil
		}
		if asked.Qtype == dns.TypePTR || asked.Qtype == dns.TypeANY {
			records = []dns.RR{&dns.PTR{Hdr: header(asked.Name, dns.TypePTR), Ptr: first}}
		}
	}
	r := new(dns.Msg)
	r.SetReply(q)
	r.Authoritative, r.RecursionAvailable, r.Answer = true, true, records
	return r
}

// now is the table of the file, which is looked at again from time to time.
func (h *hosts) now(now time.Time) hostTable {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.read) <= confReload {
		return h.table
	}
	h.read = now
	fi, err := os.Stat(h.file)
	if err != nil {
		h.table, h.changed = hostTable{}, time.Time{}
		return h.table
	}
	if fi.ModTime().Equal(h.changed) {
		return h.table
	}
	f, err := os.Open(h.file)
	if err != nil {
		return h.table
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHostsFile))
	if err != nil {
		return h.table
	}
	h.changed, h.table = fi.ModTime(), readHosts(data)
	return h.table
}

// readHosts reads a file's lines: an address and its names. Those of the loopback
// network are left out, for they are another machine to each who asks; lines that cannot
// be read are passed over, as libc does.
func readHosts(data []byte) hostTable {
	t := hostTable{addrs: map[string][]netip.Addr{}, names: map[netip.Addr]string{}}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		if a = a.Unmap(); err != nil || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
			continue
		}
		for _, name := range fields[1:] {
			if _, ok := dns.IsDomainName(name); !ok || len(t.addrs) >= maxHostsNames {
				continue
			}
			name = dns.CanonicalName(name)
			t.addrs[name] = append(t.addrs[name], a)
			if t.names[a] == "" {
				t.names[a] = name
			}
		}
	}
	return t
}
