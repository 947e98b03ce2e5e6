package peer

import "time"

// A node that has all of a layer sends slowBytes in slowTime at least, of all that it is asked
// for; else it is not asked for poorTime, nor one that falls silent: the registry, and others,
// are faster. One that is still getting a layer itself may be as slow as what it gets.
const (
	slowTime  = 5 * time.Second
	slowBytes = 1 << 20
	poorTime  = 5 * time.Minute
)

// pace is how fast a node sends of the layers that it has all of.
type pace struct {
	open   int           // requests
	since  time.Time     // since when there are some, or the look
	waited time.Duration // before that, with requests
	got    int64         // in that time
	looked time.Time
}

func (p *pace) begin(now time.Time) {
	if p.open == 0 {
		p.since = now
	}
	p.open++
}

func (p *pace) end(now time.Time) {
	if p.open--; p.open == 0 {
		p.waited += now.Sub(p.since)
	}
}

// slow tells whether too little came, and begins anew when it can tell. It is called each tick
// while something is waited for: a longer pause is one of this process, which no other node
// can help.
func (p *pace) slow(now time.Time) bool {
	late := now.Sub(p.looked) > 3*tick
	p.looked = now
	waited := p.waited
	if p.open > 0 {
		waited += now.Sub(p.since)
	}
	if !late && waited < slowTime {
		return false
	}
	little := p.got < slowBytes
	p.since, p.waited, p.got = now, 0, 0
	return little && !late
}

// paceOf is that of a node. The caller holds mu.
func (p *Peers) paceOf(node string) *pace {
	if p.paces[node] == nil {
		p.paces[node] = &pace{looked: time.Now()}
	}
	return p.paces[node]
}

// asking and answered say that a node is asked for bytes of a layer that it has all of, and
// that this has ended.
func (p *Peers) asking(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paceOf(node).begin(time.Now())
}

func (p *Peers) answered(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paceOf(node).end(time.Now())
}

func (p *Peers) arrived(node string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paceOf(node).got += int64(n)
}

// poor tells whether a node is not to be asked now, because of its pace too.
func (p *Peers) poor(node string) bool {
	now := time.Now()
	p.mu.Lock()
	if now.Before(p.banned[node]) {
		p.mu.Unlock()
		return true
	}
	m := p.paces[node]
	slow := m != nil && m.slow(now)
	p.mu.Unlock()
	if slow {
		p.leave(node, "it sends too slowly")
	}
	return slow
}

// leave has a node not asked for poorTime.
func (p *Peers) leave(node, why string) {
	p.cfg.Log.Info("a node is not asked for layers for a time", "node", node, "why", why, "pause", poorTime)
	p.ban(node, poorTime)
}
