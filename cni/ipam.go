package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// pool gives out the addresses of one prefix; those of both families may share a
// directory. A reservation is a symbolic link
// named by the address whose target names the owner: made and read in one
// atomic system call, so that processes share a directory without a lock and a
// crash leaves no half-written state.
type pool struct {
	dir    string
	prefix netip.Prefix
	known  *index // of all that share the directory in this process
}

// ErrNoAddress is why no more pods can be connected.
var ErrNoAddress = errors.New("no free address")

// lastLink remembers the address given out last, or a moment ago, so that a freed one
// rests for as long as possible before it comes around again.
const lastLink = "last"

// lastLink6 is the same for IPv6. The other name is that of earlier versions.
const lastLink6 = "last6"

func (p pool) lastLink() string {
	if p.prefix.Addr().Is6() {
		return lastLink6
	}
	return lastLink
}

// lastWait is how much time at least lies between two writes of the last address: pods
// come in bursts.
const lastWait = time.Second

// gave remembers the address that was given out last; p.known is locked.
func (p pool) gave(a netip.Addr) {
	x := p.known
	if x.last == nil {
		x.last, x.lastWritten = map[string]netip.Addr{}, map[string]time.Time{}
	}
	name := p.lastLink()
	x.last[name] = a
	if time.Since(x.lastWritten[name]) >= lastWait {
		p.link(a.String(), name)
		x.lastWritten[name] = time.Now()
	}
}

// last is the address that was given out last, if any is known; p.known is locked.
func (p pool) last() netip.Addr {
	name := p.lastLink()
	if a, ok := p.known.last[name]; ok {
		return a
	}
	t, err := os.Readlink(filepath.Join(p.dir, name))
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(t)
	return a
}

// gateway is the first address of the prefix; it belongs to the bridge.
func (p pool) gateway() netip.Addr { return p.prefix.Masked().Addr().Next() }

// usedPrefix begins the name of a link from an address to the pod that had it
// last. There is at most one an address.
const usedPrefix = "used-"

// reserve returns owner's address, a new one if it has none. A pod gets the
// address that it had last where that is free: after a reboot what others know
// of it stays true.
func (p pool) reserve(owner, pod string) (netip.Addr, error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return netip.Addr{}, fmt.Errorf("reserve address: %w", err)
	}
	x := p.known
	x.mu.Lock()
	defer x.mu.Unlock()
	fresh := !x.read
	if fresh {
		if err := p.remember(); err != nil {
			return netip.Addr{}, err
		}
	}
	for _, a := range slices.Clone(x.of[owner]) {
		if a.Is4() != p.prefix.Addr().Is4() {
			continue
		}
		if now, err := os.Readlink(p.path(a)); err == nil && now == owner {
			return a, nil
		}
		x.freed(a)
	}
	for _, last := range x.had[pod] {
		if pod == "" || !p.usable(last) {
			continue
		}
		if err := os.Symlink(owner, p.path(last)); err == nil {
			x.reserved(last, owner)
			return last, nil
		}
	}
	a, err := p.next(owner)
	if errors.Is(err, ErrNoAddress) && !fresh {
		if err := p.remember(); err != nil {
			return netip.Addr{}, err
		}
		a, err = p.next(owner)
	}
	if err == nil && pod != "" {
		p.link(pod, usedPrefix+a.String())
		x.usedBy(a, pod)
	}
	return a, err
}

// remember reads the directory; p.known is locked.
func (p pool) remember() error {
	held, used, err := p.read()
	if err != nil {
		return err
	}
	p.known.set(held, used)
	return nil
}

// path is the link of an address.
func (p pool) path(a netip.Addr) string { return filepath.Join(p.dir, a.String()) }

// reserveAgain reserves an address that owner has, unless it is reserved.
func (p pool) reserveAgain(owner string, a netip.Addr) error {
	if !p.usable(a) {
		return nil // of another network
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("reserve address: %w", err)
	}
	switch err := os.Symlink(owner, p.path(a)); {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return fmt.Errorf("reserve address: %w", err)
	}
	p.known.mu.Lock()
	defer p.known.mu.Unlock()
	p.known.reserved(a, owner)
	return nil
}

// next reserves the free address that comes after the one given out last; p.known is
// locked.
func (p pool) next(owner string) (netip.Addr, error) {
	first := p.gateway().Next()
	a := first
	if last := p.last(); last.IsValid() && p.usable(last.Next()) {
		a = last.Next()
	}
	for start, wrapped := a, false; !wrapped || a != start; a = a.Next() {
		if !p.usable(a) {
			if wrapped {
				break
			}
			a, wrapped = first, true
			if a == start {
				break
			}
		}
		if _, taken := p.known.owner[a]; taken {
			continue
		}
		err := os.Symlink(owner, p.path(a))
		switch {
		case err == nil:
			p.gave(a)
			p.known.reserved(a, owner)
			return a, nil
		case !errors.Is(err, fs.ErrExist):
			return netip.Addr{}, fmt.Errorf("reserve address: %w", err)
		}
	}
	return netip.Addr{}, fmt.Errorf("%w in %s", ErrNoAddress, p.prefix)
}

// longestWalk is the length of the prefix that addresses of IPv6 are given from, the first
// of the range: 4096, more than a node has pods, and few enough to remember who had each.
const longestWalk = 116

// usable excludes what lies outside and the IPv4 broadcast address.
func (p pool) usable(a netip.Addr) bool {
	if a.Is6() {
		return netip.PrefixFrom(p.prefix.Masked().Addr(), max(p.prefix.Bits(), longestWalk)).Contains(a)
	}
	return p.prefix.Contains(a) && p.prefix.Contains(a.Next())
}

// link replaces a link that is advisory: a lost update only lets an address
// return earlier, or a pod get another one.
func (p pool) link(target, name string) {
	tmp := filepath.Join(p.dir, "."+name)
	if os.Symlink(target, tmp) != nil || os.Rename(tmp, filepath.Join(p.dir, name)) != nil {
		_ = os.Remove(tmp)
	}
}

// held lists every reservation and its owner; none if the directory is missing.
func (p pool) held() (map[netip.Addr]string, error) {
	held, _, err := p.read()
	return held, err
}

// read lists the reservations with their owners, of both families, and the pods
// with the addresses that each had last.
func (p pool) read() (held map[netip.Addr]string, used map[string][]netip.Addr, err error) {
	d, err := os.Open(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	held, used = make(map[netip.Addr]string, len(names)), make(map[string][]netip.Addr, len(names))
	for _, name := range names {
		text, isUsed := strings.CutPrefix(name, usedPrefix)
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		switch target, err := os.Readlink(filepath.Join(p.dir, name)); {
		case err != nil: // freed at this moment
		case isUsed:
			used[target] = append(used[target], a)
		default:
			held[a] = target
		}
	}
	return held, used, nil
}

// release frees one address; freeing a free one is no error.
func (p pool) release(a netip.Addr) error {
	if err := os.Remove(p.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release address: %w", err)
	}
	p.known.mu.Lock()
	defer p.known.mu.Unlock()
	p.known.freed(a)
	return nil
}
