package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"time"
)

// bench is one size of a group and what is done to it.
type bench struct {
	*fleet
	deaths  int
	minutes float64
	out     *report
	// counted is how many false alarms there were.
	counted int
}

// scenarios by the names of -scenario.
var scenarios = map[string]func(*bench, context.Context) error{
	"deaths": (*bench).killing,
	"quiet":  (*bench).quiet,
	"load":   (*bench).loaded,
	"loss":   (*bench).losing,
	"pause":  (*bench).pausing,
	"oneway": (*bench).oneWay,
	"mute":   (*bench).muting,
	"flap":   (*bench).flapping,
}

// limit is how long a death, a return or a settlement is waited for.
const limit = 3 * time.Minute

// killing ends members without a word, one after the other, and starts each
// again when all know.
func (b *bench) killing(ctx context.Context) error {
	b.watch.take()
	for range b.deaths {
		if err := sleep(ctx, 2*time.Second+rand.N(time.Second)); err != nil {
			return err
		}
		// The first coordinator watches; any other machine may die.
		m := b.members[1+rand.IntN(len(b.members)-1)]
		if err := b.killOne(ctx, m); err != nil {
			return err
		}
	}
	b.alarms("called dead while alive, between deaths", b.watch.take())
	return nil
}

func (b *bench) killOne(ctx context.Context, m *member) error {
	killed := time.Now()
	b.watch.kill(m.name, killed)
	m.kill()
	<-m.ended
	if err := b.timed(ctx, "dead", m, false, killed); err != nil {
		return err
	}
	started := time.Now()
	if err := b.start(m); err != nil {
		return err
	}
	if err := b.timed(ctx, "back", m, true, started); err != nil {
		return err
	}
	b.watch.revive(m.name)
	return b.await(ctx, limit, m.name+" sees all", b.whole)
}

// timed waits until all others have the state of m, and notes after how long
// the first, one coordinator, 99 % and all of them had it.
func (b *bench) timed(ctx context.Context, what string, m *member, up bool, from time.Time) error {
	err := b.await(ctx, limit, m.name+" is "+what, func() bool {
		_, missing := b.watch.times(m.name, up, from)
		return missing == 0
	})
	if err != nil {
		return err
	}
	times, _ := b.watch.times(m.name, up, from)
	var all []time.Duration
	for _, t := range times {
		all = append(all, t)
	}
	slices.Sort(all)
	b.out.add(what+": first member knows", all[0])
	b.out.add(what+": a given coordinator knows", times[b.members[0].name])
	b.out.add(what+": 99 % of members know", all[(len(all)-1)*99/100])
	b.out.add(what+": last member knows", all[len(all)-1])
	return nil
}

// during watches for a scenario's minutes, and then until all is well.
func (b *bench) during(ctx context.Context, what string, begin, end func()) error {
	b.watch.take()
	begin()
	err := sleep(ctx, time.Duration(b.minutes*float64(time.Minute)))
	end()
	if err != nil {
		return err
	}
	return b.settle(ctx, what)
}

// settle waits until all see all, and tells which alarms there were.
func (b *bench) settle(ctx context.Context, what string) error {
	peace := time.Now()
	if err := b.await(ctx, limit, what+": settled", b.whole); err != nil {
		return err
	}
	b.out.add(what+": settled after its end", time.Since(peace))
	b.alarms(fmt.Sprintf("%s for %.1f min", what, b.minutes), b.watch.take())
	return nil
}

// alarms reports calls and about how many members they were.
func (b *bench) alarms(what string, list []alarm) {
	b.counted += len(list)
	about, by := map[string]bool{}, map[string]bool{}
	for _, a := range list {
		about[a.about], by[a.by] = true, true
	}
	b.out.line("%s: %d false alarms, about %d members, by %d members", what, len(list), len(about), len(by))
}

func (b *bench) quiet(ctx context.Context) error {
	return b.during(ctx, "peace", func() {}, func() {})
}

// loaded has twice as many busy processes as processors.
func (b *bench) loaded(ctx context.Context) error {
	busy, stop := context.WithCancel(ctx)
	defer stop()
	var hogs []*exec.Cmd
	return b.during(ctx, "full CPU load", func() {
		for range 2 * runtime.NumCPU() {
			hog := exec.CommandContext(busy, "sh", "-c", "while :; do :; done")
			if hog.Start() == nil {
				hogs = append(hogs, hog)
			}
		}
	}, func() {
		stop()
		for _, h := range hogs {
			_ = h.Wait()
		}
	})
}

func (b *bench) losing(ctx context.Context) error {
	return b.during(ctx, "20 % of packets lost", func() { b.net.setLoss(0.2) }, func() { b.net.setLoss(0) })
}

const (
	pauseFor   = 3 * time.Second
	pauseEvery = 5 * time.Second
)

// pausing stops one random member after the other for three seconds.
func (b *bench) pausing(ctx context.Context) error {
	b.watch.take()
	n := 0
	for end := time.Now().Add(time.Duration(b.minutes * float64(time.Minute))); time.Now().Before(end); n++ {
		m := b.members[rand.IntN(len(b.members))]
		began := time.Now()
		m.link.pause(true)
		err := sleep(ctx, pauseFor)
		m.link.pause(false)
		if err != nil {
			return err
		}
		if err := sleep(ctx, pauseEvery-pauseFor+rand.N(time.Second)); err != nil {
			return err
		}
		b.tellLate(m, began)
	}
	b.out.line("%d pauses of %v", n, pauseFor)
	return b.settle(ctx, "pauses of 3 s")
}

// tellLate prints when after a pause's begin somebody was called dead.
func (b *bench) tellLate(paused *member, began time.Time) {
	for _, a := range b.watch.since(began) {
		b.out.line("%s calls %s dead %.2f s after %s began to pause", a.by, a.about, a.at.Sub(began).Seconds(),
			paused.name)
	}
}

// oneWay has one member not hear another, which hears it; all others do.
func (b *bench) oneWay(ctx context.Context) error {
	from, to := b.pair()
	return b.during(ctx, "one direction between two members cut",
		func() { b.net.setCut(from.ip, to.ip, true) }, func() { b.net.setCut(from.ip, to.ip, false) })
}

func (b *bench) pair() (*member, *member) {
	order := rand.Perm(len(b.members))
	return b.members[order[0]], b.members[order[1]]
}

// muting has nobody hear a member that hears all.
func (b *bench) muting(ctx context.Context) error {
	m := b.members[len(b.members)-1]
	set := func(broken bool) {
		for _, other := range b.members[:len(b.members)-1] {
			b.net.setCut(m.ip, other.ip, broken)
		}
	}
	b.watch.kill(m.name, time.Now()) // to be called dead is right
	err := b.during(ctx, "a member that nobody hears", func() { set(true) }, func() { set(false) })
	b.watch.revive(m.name)
	return err
}

// flapping cuts a member off and lets it back, each second.
func (b *bench) flapping(ctx context.Context) error {
	m := b.members[len(b.members)-1]
	b.watch.take()
	set := func(broken bool) {
		for _, other := range b.members[:len(b.members)-1] {
			b.net.setCut(m.ip, other.ip, broken)
			b.net.setCut(other.ip, m.ip, broken)
		}
	}
	end := time.Now().Add(time.Duration(b.minutes * float64(time.Minute)))
	for broken := true; time.Now().Before(end); broken = !broken {
		set(broken)
		if err := sleep(ctx, time.Second); err != nil {
			set(false)
			return err
		}
	}
	set(false)
	return b.settle(ctx, "a link that comes and goes each second")
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
