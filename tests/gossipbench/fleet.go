package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
)

// port is that of all members; each has an address of its own in 127.0.0.0/8,
// below a number that tells two benches on one machine apart.
const port = 17946

var loopback = 20 + os.Getpid()%200

// coordinators is how many members are coordinators: the first ones, which all
// join by, too.
const coordinators = 3

// startAtOnce is how many members are started together, startEvery apart; the next come
// when all know these. A newcomer verifies all others, they verify it, and the
// processors of all are those of one machine: faster, and they starve.
const (
	startAtOnce = 10
	startEvery  = 50 * time.Millisecond
)

// member is one machine's part in the gossip; it keeps name, address, key and
// grant over its deaths.
type member struct {
	name, ip string
	id       *gossip.Identity
	grant    []byte
	role     gossip.Role

	group *gossip.Group
	link  *link
	kill  context.CancelFunc
	ended chan struct{}
}

// fleet is a group of members in this process that prove who they are, as in a
// cluster: an authority, grants, a shared key, real sockets.
type fleet struct {
	net     *network
	connect func(*network, *member) (*link, error)
	port    int
	trust   gossip.Trust
	keys    *gossip.Keyring
	members []*member
	watch   *watcher
	wg      sync.WaitGroup
}

func newFleet(size int) (*fleet, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now(), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	shared := make([]byte, 32)
	if _, err := rand.Read(shared); err != nil {
		return nil, err
	}
	f := &fleet{net: &network{cut: map[[2]string]bool{}}, connect: realLink, port: port, trust: gossip.Trust{cert},
		watch: newWatcher(size)}
	if f.keys, err = gossip.NewKeyring(shared); err != nil {
		return nil, err
	}
	for i := range size {
		m, err := newMember(i, key)
		if err != nil {
			return nil, err
		}
		f.members = append(f.members, m)
	}
	return f, nil
}

func newMember(i int, authority *ecdsa.PrivateKey) (*member, error) {
	m := &member{name: fmt.Sprintf("machine-%03d", i), ip: fmt.Sprintf("127.%d.%d.%d", loopback, i/250, i%250+1),
		role: gossip.RoleAgent}
	if i < coordinators {
		m.role = gossip.RoleCoordinator
	}
	var err error
	if m.id, err = gossip.NewIdentity(); err != nil {
		return nil, err
	}
	pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 250), byte(i % 250), 0}), 24)
	m.grant, err = gossip.Grant{Role: m.role, Key: m.id.PublicKey(), PodCIDRs: []netip.Prefix{pods},
		NodeIPs: []netip.Addr{netip.MustParseAddr(m.ip)}, Issued: time.Now(),
		Expires: time.Now().Add(24 * time.Hour)}.Sign(m.name, authority)
	return m, err
}

// start has a member begin, for the first time or after its death.
func (f *fleet) start(m *member) error {
	var err error
	if m.link, err = f.connect(f.net, m); err != nil {
		return err
	}
	var join []string
	for _, c := range f.members[:min(coordinators, len(f.members))] {
		join = append(join, fmt.Sprintf("%s:%d", c.ip, f.port))
	}
	m.group, err = gossip.New(gossip.Config{
		Name: m.name, BindAddr: m.ip, BindPort: f.port, AdvertiseAddr: m.ip, Join: join,
		Keys: f.keys, Trust: f.trust, Identity: m.id, Grant: m.grant,
		Meta:      gossip.Meta{Role: m.role, Zone: "zone-a"},
		Log:       silent,
		Transport: m.link,
	})
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, m.kill = context.WithCancel(context.Background())
	ended := make(chan struct{})
	m.ended = ended
	group := m.group
	f.wg.Go(func() {
		defer close(ended)
		_ = group.Run(ctx)
	})
	f.wg.Go(func() { f.watch.follow(ctx, m.name, group) })
	return nil
}

// startAll starts all members and returns when each sees all as alive.
func (f *fleet) startAll(ctx context.Context) error {
	for i, m := range f.members {
		if err := f.start(m); err != nil {
			return err
		}
		if err := sleep(ctx, startEvery); err != nil {
			return err
		}
		if (i+1)%startAtOnce != 0 {
			continue
		}
		err := f.await(ctx, startLimit, fmt.Sprintf("%d members know %s", i+1, m.name), func() bool {
			return f.watch.known(m.name, i+1)
		})
		if err != nil {
			return err
		}
	}
	return f.await(ctx, startLimit, "all members see each other", f.whole)
}

// startLimit is how long members may take to know each other.
const startLimit = 15 * time.Minute

// whole tells whether each member that lives sees all others that do.
func (f *fleet) whole() bool {
	return f.watch.complete(len(f.members))
}

// await polls a condition of the whole fleet.
func (f *fleet) await(ctx context.Context, limit time.Duration, what string, done func() bool) error {
	for deadline := time.Now().Add(limit); !done(); {
		if time.Now().After(deadline) {
			up, down, example := f.watch.state()
			return fmt.Errorf("%s: not within %v: of %d pairs %d are up and %d down, as %s", what, limit,
				len(f.members)*len(f.members), up, down, example)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookAfter(len(f.members))):
		}
	}
	return nil
}

func (f *fleet) close() {
	for _, m := range f.members {
		if m.kill != nil {
			m.kill()
		}
	}
	f.wg.Wait()
}
