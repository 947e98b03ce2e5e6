package gossip

import (
	"math"
	"time"

	"github.com/hashicorp/memberlist"
)

// A death is known after
//
//	the time until somebody probes the dead member, and the probe is given up
//	the suspicion, within which the accused can contradict
//	the news' way to the others
//
// and a member that was paused, or whose packets were lost, is not called dead if
// it contradicts within the suspicion. So the suspicion is what a pause may take,
// 3 s, but for the probe that was given up before it; and all else is made short.
// docs/fleet.md has the figures for each of these values.
const (
	// probeInterval is the beat of the probes and of the news, and when a probe is
	// given up. Four of five machines probe the fifth in turns, so that a dead one
	// is probed within 0.3 s mostly, and within four beats. With beats of 500 ms (the
	// value of before) or 400 ms that, the beat and the suspicion passed 5 s in some
	// cases. It costs a member 0.02 to 0.03 % of a processor more than 500 ms.
	probeInterval = 350 * time.Millisecond

	// probeTimeout is when others are asked to probe, too. They wait as long
	// themselves before they say that they have no answer either: both waits must fit
	// into the interval. With 300 of 500 ms no such answer came in time, and each
	// probe of a dead machine counted as three signs that this member itself is ill.
	probeTimeout = 150 * time.Millisecond

	// suspicionMin is the shortest suspicion. One that begins with a pause of 3 s ends
	// 0.5 s at least after it, for the probe comes before; the pause's end is told
	// with the next beat.
	suspicionMin = 9 * probeInterval
	// suspicionMult intervals, times the logarithm of the members' number, is the
	// suspicion of large groups, in which news travel longer: 5.7 s of 500.
	suspicionMult = 6
)

// suspicionMultFor is how many intervals, times max(1, log10(members)) as memberlist
// has it, give the suspicion of a group of that size.
func suspicionMultFor(members int) int {
	scale := max(1, math.Log10(float64(max(1, members))))
	needed := float64(suspicionMin) / (scale * float64(probeInterval))
	return max(suspicionMult, int(math.Ceil(needed-1e-9)))
}

// fitSuspicion adapts the suspicion to the group's size. Memberlist reads the
// multiplier only where a suspicion begins, and that holds its node lock, as all of
// those do that call this (the events and New).
func (g *Group) fitSuspicion(members int) { g.conf.SuspicionMult = suspicionMultFor(members) }

// memberlistConfig is the LAN profile, tuned. Awareness (Lifeguard) stays on, so that
// a starved member blames itself first.
func (g *Group) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.cfg.Name
	if g.cfg.BindAddr != "" {
		c.BindAddr = g.cfg.BindAddr
	}
	switch g.cfg.BindPort {
	case 0:
		c.BindPort = DefaultPort
	case -1:
		c.BindPort = 0
	default:
		c.BindPort = g.cfg.BindPort
	}
	c.AdvertisePort = c.BindPort
	c.AdvertiseAddr = g.cfg.AdvertiseAddr
	c.ProbeInterval, c.ProbeTimeout = probeInterval, probeTimeout
	// The interval of probes, for both tickers begin together: one wake-up of an
	// idle process, not two. Twice the nodes make news spread about as fast.
	c.GossipInterval, c.GossipNodes = c.ProbeInterval, 6
	// How often a member passes news on, times log10 of their number. The library's 4
	// is once to each in a group of five: with 20 % of packets lost a suspicion, or the
	// word against it, missed one member too often.
	c.RetransmitMult = 8
	c.SuspicionMult = suspicionMultFor(1)
	// How many others are asked to probe who did not answer. With 20 % of packets lost and
	// the library's 3, a hundred members suspect some twelve each second by calculation, more
	// news than fit into the packets: 80 false alarms in five minutes. With 6 there were none
	// among a hundred, but 89 in a minute among five hundred, with 10 none among these, and
	// less work for all. At peace nobody is asked.
	c.IndirectChecks = 10
	// A member that missed probes probes at most three times as slowly. The
	// library's eight times left one that was silent for 1.5 s no probe within the
	// suspicion by which to hear of it and contradict.
	c.AwarenessMaxMultiplier = 3
	c.SuspicionMaxTimeoutMult = 2
	c.DeadNodeReclaimTime = time.Second // a machine may come back with another address
	c.EnableCompression = false         // costs more than it saves at this message size
	c.MsgpackUseNewTimeFormat = true
	c.UDPBufferSize -= packetOverhead
	c.Delegate, c.Events, c.Conflict, c.Ping = delegate{g}, delegate{g}, delegate{g}, delegate{g}
	c.Logger = newLogger(g.log)
	return c
}
