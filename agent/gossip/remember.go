package gossip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"
)

// kept is another node as it is written down for the next start of this member. A
// power cut may take all coordinators, whose addresses are all that a configuration
// tells; the nodes that come back find each other by this. The grant is checked again
// when it is read: what the file says gives nobody anything.
type kept struct {
	Name  string         `json:"name"`
	Addr  netip.AddrPort `json:"addr"`
	Grant []byte         `json:"grant"`
	// Gone is when the member ended, and Left whether that was planned.
	Gone *time.Time `json:"gone,omitempty"`
	Left bool       `json:"left,omitempty"`
}

const (
	// maxKeptFile is the file of about 16,000 members.
	maxKeptFile = 8 << 20
	// unheardFor is how long after its start this member thinks well of those that it
	// knew before: it meets one of them within the second, and that one tells of all.
	// After a power cut those that are not back yet are dead after it.
	unheardFor = 5 * time.Second
	// rememberAfter is how much later than a change the file is written, rememberFailed
	// when it is tried again.
	rememberAfter, rememberFailed = 2 * time.Second, time.Minute
)

// recall makes the nodes of the last run members. A file that cannot be read is none:
// the join addresses lead to the others too.
func (g *Group) recall() {
	if g.cfg.File == "" || !g.book.verified() {
		return
	}
	f, err := os.Open(g.cfg.File)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			g.log.Warn("gossip: members of the last run are not known", "err", err)
		}
		return
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeptFile))
	if err != nil {
		g.log.Warn("gossip: members of the last run are not known", "err", err)
		return
	}
	g.inFile = data
	g.recallAll(data, time.Now())
}

func (g *Group) recallAll(data []byte, now time.Time) {
	for _, k := range decodeKept(data) {
		if k.Name == g.cfg.Name {
			continue
		}
		p, err := g.book.introduce(k.Name, k.Grant)
		if err != nil || p.grant.Role != RoleAgent {
			continue // of another cluster, or cut off for long
		}
		m := Member{Name: k.Name, Meta: Meta{Role: RoleAgent}, Addr: k.Addr, State: StateUnheard, Since: now,
			PodCIDRs: p.grant.PodCIDRs, NodeIPs: p.grant.NodeIPs, Granted: p.grant.Issued}
		if k.Gone != nil {
			m.State, m.Since = stateOf(false, k.Left), *k.Gone
			m.Leaving = k.Left
		}
		g.mu.Lock()
		if _, known := g.members[k.Name]; !known {
			g.members[k.Name] = m
		}
		g.mu.Unlock()
	}
}

// decodeKept reads the file; what makes no sense is passed over.
func decodeKept(data []byte) []kept {
	var list []kept
	if json.Unmarshal(data, &list) != nil {
		return nil
	}
	return slices.DeleteFunc(list, func(k kept) bool { return k.Name == "" || !k.Addr.IsValid() })
}

// giveUp has those that were not heard since the start counted as dead.
func (g *Group) giveUp(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(unheardFor):
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, m := range g.members {
		if m.State == StateUnheard {
			m.State, m.Since = StateDead, time.Now()
			g.members[name] = m
			poke(g.changed)
		}
	}
	g.notify()
}

// remember writes the nodes down, if there is something new about them.
func (g *Group) remember() error {
	if g.cfg.File == "" || !g.book.verified() {
		return nil
	}
	data, err := json.Marshal(g.toKeep())
	if err == nil && !bytes.Equal(data, g.inFile) {
		err = replaceFile(g.cfg.File, data)
	}
	if err == nil {
		g.inFile = data
	}
	return err
}

// rememberAgain is remember, and when to try again.
func (g *Group) rememberAgain() <-chan time.Time {
	err := g.remember()
	if err == nil {
		return nil
	}
	g.log.Warn("gossip: members are not kept for the next start, trying on", "err", err)
	return time.After(rememberFailed)
}

func (g *Group) toKeep() []kept {
	list := []kept{}
	for _, m := range g.Members() {
		p := g.book.peer(m.Name)
		if m.Local || m.Role != RoleAgent || p == nil || len(p.rawGrant) == 0 {
			continue
		}
		k := kept{Name: m.Name, Addr: m.Addr, Grant: p.rawGrant}
		if m.State == StateDead || m.State == StateLeft {
			k.Gone, k.Left = &m.Since, m.State == StateLeft
		}
		list = append(list, k)
	}
	return list
}
