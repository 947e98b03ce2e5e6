package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/members"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/store"
)

// member is kept beside the store of a coordinator that is one of several, or was.
type member struct {
	Name string `json:"name"`
	// Join are the other members' URLs, which a newcomer asks who they are.
	Join []string `json:"join,omitempty"`
	// Witness has a vote and a copy of the store, and serves no API.
	Witness bool `json:"witness,omitempty"`
	// Restored is the restoration that this member has followed; Rejoin one that it has
	// to follow.
	Restored *members.Restoration `json:"restored,omitempty"`
	Rejoin   *rejoin              `json:"rejoin,omitempty"`
}

func memberFile(cfg config.Config) string { return filepath.Join(cfg.StateDir(), "member.json") }

// readMember returns nil where the store has never had another member.
func readMember(cfg config.Config) (*member, error) {
	data, err := os.ReadFile(memberFile(cfg))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what this coordinator is called: %w", err)
	}
	m := &member{}
	if err := json.Unmarshal(data, m); err != nil || m.Name == "" {
		return nil, fmt.Errorf("read %s: it is damaged (%w); it holds {\"name\": \"NAME\"}, with this coordinator's name in `shoal coordinators`",
			memberFile(cfg), err)
	}
	return m, nil
}

func (m member) write(cfg config.Config) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return pki.WriteFile(memberFile(cfg), data, 0o600)
}

// maxPeers is what a handful of members have open, several times over.
const maxPeers = 256

// peersOf makes what a member shows to others, and says how they reach it. A witness
// was given what it shows.
func peersOf(cfg config.Config, m member, advertise net.IP) (store.Peers, error) {
	dir, name := keys(cfg), members.WitnessPrefix+m.Name
	if !m.Witness {
		name = m.Name
		if err := dir.EnsurePeer([]net.IP{advertise}, time.Duration(cfg.ClusterSigningDuration), time.Now()); err != nil {
			return store.Peers{}, err
		}
	}
	return store.Peers{
		Name:   name,
		Listen: net.JoinHostPort(cfg.BindAddress, strconv.Itoa(cfg.PeerPort)),
		URL:    peerURL(cfg, advertise),
		CAFile: dir.Path(pki.PeerCAFile), CertFile: dir.Path(pki.PeerCertFile), KeyFile: dir.Path(pki.PeerKeyFile),
		Join: m.Join,
		Limit: func(l net.Listener) net.Listener {
			return process.LimitConnections(l, process.ConnectionsUpTo(maxPeers))
		},
	}, nil
}

// peerURL is where other members reach this one.
func peerURL(cfg config.Config, advertise net.IP) string {
	return "https://" + net.JoinHostPort(advertise.String(), strconv.Itoa(cfg.PeerPort))
}

// memberName is what a coordinator is called unless it was told a name when it joined.
func memberName(cfg config.Config) string {
	if cfg.NodeName != "" {
		return cfg.NodeName
	}
	return hostName()
}

// member is what this coordinator is among others, or will be.
func (s *parts) member() (member, error) {
	m, err := readMember(s.cfg)
	if err != nil || m == nil {
		return member{Name: memberName(s.cfg)}, err
	}
	return *m, nil
}

// peers are what this coordinator needs as one of several.
func (s *parts) peers() (store.Peers, error) {
	m, err := s.member()
	if err != nil {
		return store.Peers{}, err
	}
	p, err := peersOf(s.cfg, m, s.advertise)
	p.Also = s.again
	return p, err
}

// keepMember notes that this coordinator is one of several, from now on.
func (s *parts) keepMember() error {
	m, err := s.member()
	if err != nil {
		return err
	}
	select {
	case s.grown <- struct{}{}:
	default:
	}
	return m.write(s.cfg)
}

// newMembers answers who wants to join.
func (s *parts) newMembers() *members.Server {
	tokens := members.Tokens{Client: s.api.Client()}
	return &members.Server{
		Store:  s.store,
		Peers:  s.peers,
		Keep:   s.keepMember,
		Bundle: s.bundle,

		WitnessBundle: s.witnessBundle,

		Secret:  tokens.Secret,
		Spend:   tokens.Spend,
		Reaches: func(ctx context.Context, url string) bool { return reaches(ctx, keys(s.cfg), url) },

		Expected: s.expected,
		Unexpect: s.unexpect,
		Log:      s.log,
	}
}

// bundle is what makes another machine a coordinator of this cluster.
func (s *parts) bundle() (b members.Bundle, err error) {
	if b.Files, err = keys(s.cfg).Shared(); err != nil {
		return b, err
	}
	if b.Encryption, err = os.ReadFile(string(encryptionFile(s.cfg))); err != nil {
		return b, fmt.Errorf("read the cluster's keys: %w", err)
	}
	b.Settings = members.Settings{
		ServiceCIDR: s.cfg.ServiceCIDR, ClusterCIDR: s.cfg.ClusterCIDR, ClusterDNS: s.cfg.ClusterDNS,
		ClusterDomain: s.cfg.ClusterDomain, NodePortRange: s.cfg.NodePortRange,
		NodeCIDRMaskSizeIPv4: s.cfg.NodeCIDRMaskSizeIPv4, NodeCIDRMaskSizeIPv6: s.cfg.NodeCIDRMaskSizeIPv6,
		VirtualAddress: s.cfg.VirtualAddress,
	}
	b.Join = s.memberURLs()
	for _, m := range s.gossip.Members() {
		if m.Role == gossip.RoleCoordinator && m.State.Up() {
			b.Gossip = append(b.Gossip, m.Addr.String())
		}
	}
	return b, nil
}

// witnessBundle is what makes a machine at an address a witness. Its certificate lasts
// as long as the CA: it has no key to make another with.
func (s *parts) witnessBundle(address net.IP) (b members.Bundle, err error) {
	b.Join = s.memberURLs()
	b.Files, err = keys(s.cfg).PeerFiles(address, time.Now())
	return b, err
}

func (s *parts) memberURLs() (out []string) {
	for _, m := range s.store.Members() {
		if m.Name != "" {
			out = append(out, m.URL)
		}
	}
	return out
}

// reachTime is how long a member may take to say that it lives.
const reachTime = 3 * time.Second

// reaches asks another member for its version.
func reaches(ctx context.Context, dir pki.Dir, peerURL string) bool {
	info := transport.TLSInfo{
		CertFile: dir.Path(pki.PeerCertFile), KeyFile: dir.Path(pki.PeerKeyFile), TrustedCAFile: dir.Path(pki.PeerCAFile),
	}
	tlsConfig, err := info.ClientConfig()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, peerURL+"/version", nil)
	if err != nil {
		return false
	}
	t := &http.Transport{TLSClientConfig: tlsConfig}
	defer t.CloseIdleConnections()
	answer, err := (&http.Client{Transport: t}).Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// A start that waits says so once after patience, and tells the service manager that it
// goes on: a copy of the store may take longer than a start may.
const patience, longer = 10 * time.Second, time.Minute

// patient is called while this member has no vote yet.
func patient(manager process.ServiceManager, log *slog.Logger) func() {
	begun, told := time.Now(), false
	return func() {
		manager.Starting(longer)
		if !told && time.Since(begun) > patience {
			told = true
			log.Info("waiting for the other coordinators: for their majority, or for all that the store has")
		}
	}
}

// showAddress has the other members know where this one is now, as soon as they agree.
func (s parts) showAddress(ctx context.Context) {
	told := false
	for {
		err := s.store.ShowAddress(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !told {
			s.log.Warn("the other coordinators do not know this one's address yet", "err", err)
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second): // until there is a majority
		}
	}
}
