package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// pool gives out the addresses of one prefix. A reservation is a symbolic link
// named by the address whose target names the owner: made and read in one
// atomic system call, so that processes share a directory without a lock and a
// crash leaves no half-written state.
type pool struct {
	dir    string
	prefix netip.Prefix
}

// lastLink remembers the address given out last, so that a freed one rests
// for as long as possible before it comes around again.
const lastLink = "last"

// gateway is the first address of the prefix; it belongs to the bridge.
func (p pool) gateway() netip.Addr { return p.prefix.Masked().Addr().Next() }

// reserve returns owner's address, a new one if it has none.
func (p pool) reserve(owner string) (netip.Addr, error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return netip.Addr{}, fmt.Errorf("reserve address: %w", err)
	}
	held, err := p.held()
	if err != nil {
		return netip.Addr{}, err
	}
	for a, o := range held {
		if o == owner {
			return a, nil
		}
	}
	first := p.gateway().Next()
	a := first
	if t, err := os.Readlink(filepath.Join(p.dir, lastLink)); err == nil {
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
			p.remember(a)
			return a, nil
		case !errors.Is(err, fs.ErrExist):
			return netip.Addr{}, fmt.Errorf("reserve address: %w", err)
		}
	}
	return netip.Addr{}, fmt.Errorf("no free address in %s", p.prefix)
}

// usable excludes what lies outside and the IPv4 broadcast address.
func (p pool) usable(a netip.Addr) bool {
	return p.prefix.Contains(a) && (!a.Is4() || p.prefix.Contains(a.Next()))
}

// remember is advisory: a lost update only lets an address return earlier.
func (p pool) remember(a netip.Addr) {
	tmp := filepath.Join(p.dir, "."+a.String())
	if os.Symlink(a.String(), tmp) != nil || os.Rename(tmp, filepath.Join(p.dir, lastLink)) != nil {
		_ = os.Remove(tmp)
	}
}

// held lists every reservation and its owner; none if the directory is missing.
func (p pool) held() (map[netip.Addr]string, error) {
	d, err := os.Open(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	held := make(map[netip.Addr]string, len(names))
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil {
			continue
		}
		if owner, err := os.Readlink(filepath.Join(p.dir, name)); err == nil {
			held[a] = owner
		}
	}
	return held, nil
}

// release frees one address; freeing a free one is no error.
func (p pool) release(a netip.Addr) error {
	if err := os.Remove(filepath.Join(p.dir, a.String())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release address: %w", err)
	}
	return nil
}
