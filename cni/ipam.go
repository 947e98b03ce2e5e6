package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// pool gives out the addresses of one prefix; those of both families may share a
// directory. A reservation is a symbolic link
// named by the address whose target names the owner: made and read in one
// atomic system call, so that processes share a directory without a lock and a
// crash leaves no half-written state.
type pool struct {
	dir    string
	prefix netip.Prefix
}

// ErrNoAddress is why no more pods can be connected.
var ErrNoAddress = errors.New("no free address")

// lastLink remembers the address given out last, so that a freed one rests
// for as long as possible before it comes around again.
const lastLink = "last"

// lastLink6 is the same for IPv6. The other name is that of earlier versions.
const lastLink6 = "last6"

func (p pool) lastLink() string {
	if p.prefix.Addr().Is6() {
		return lastLink6
	}
	return lastLink
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
	held, used, err := p.read()
	if err != nil {
		return netip.Addr{}, err
	}
	for a, o := range held {
		if o == owner && a.Is4() == p.prefix.Addr().Is4() {
			return a, nil
		}
	}
	for _, last := range used[pod] {
		if pod == "" || !p.usable(last) {
			continue
		}
		if err := os.Symlink(owner, filepath.Join(p.dir, last.String())); err == nil {
			return last, nil
		}
	}
	a, err := p.next(owner, held)
	if err == nil && pod != "" {
		p.link(pod, usedPrefix+a.String())
	}
	return a, err
}

// reserveAgain reserves an address that owner has, unless it is reserved.
func (p pool) reserveAgain(owner string, a netip.Addr) error {
	if !p.usable(a) {
		return nil // of another network
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("reserve address: %w", err)
	}
	if err := os.Symlink(owner, filepath.Join(p.dir, a.String())); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("reserve address: %w", err)
	}
	return nil
}

// next reserves the free address that comes after the one given out last.
func (p pool) next(owner string, held map[netip.Addr]string) (netip.Addr, error) {
	first := p.gateway().Next()
	a := first
	if t, err := os.Readlink(filepath.Join(p.dir, p.lastLink())); err == nil {
		if last, err := netip.ParseAddr(t); err == nil && p.usable(last.Next()) {
			a = last.Next()
		}
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
		if _, taken := held[a]; taken {
			continue
		}
		err := os.Symlink(owner, filepath.Join(p.dir, a.String()))
		switch {
		case err == nil:
			p.link(a.String(), p.lastLink())
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
	if err := os.Remove(filepath.Join(p.dir, a.String())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release address: %w", err)
	}
	return nil
}
