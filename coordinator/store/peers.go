package store

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// Peers are how members of one store reach each other: HTTP with certificates of
// one CA on both sides.
type Peers struct {
	// Name is what people call this member; unique.
	Name string
	// Listen is the address that others connect to, URL how they write it
	// (https://host:port).
	Listen, URL string
	// CAFile, CertFile and KeyFile are read again with each connection, but for the CA.
	CAFile, CertFile, KeyFile string
	// Join are URLs of members that there are: where a member that has no files yet
	// asks who the others are.
	Join []string
	// Also answers other members' requests below AlsoPath; nil: nothing does.
	Also http.Handler
	// Limit bounds the connections of a listener; nil: nothing does.
	Limit func(net.Listener) net.Listener
}

// AlsoPath begins the paths on the peers' port that are not etcd's.
const AlsoPath = "/shoal/"

const (
	// With others a tick is a heartbeat, and an election begins after ten without one:
	// etcd's own lengths.
	peerTickMs, peerElectMs = 100, 1000
	// peerCatchUpEntries are kept in memory for followers that were away for a while;
	// others get the whole database. etcd's own number would hold some 20 MB.
	peerCatchUpEntries = 1000
	// handshakeTime bounds how long a connection may take to say who it is.
	handshakeTime = 5 * time.Second
	// maxMembersBytes bounds another member's answer.
	maxMembersBytes = 1 << 20
)

// ClientTLS is what this member speaks to others with.
func (p *Peers) ClientTLS() (*tls.Config, error) {
	info := p.tls()
	return info.ClientConfig()
}

func (p *Peers) tls() transport.TLSInfo {
	return transport.TLSInfo{CertFile: p.CertFile, KeyFile: p.KeyFile, TrustedCAFile: p.CAFile, ClientCertAuth: true}
}

// join makes a configuration that of a member which may have others.
func (p *Peers) join(c *embed.Config) error {
	own, err := url.Parse(p.URL)
	if err != nil {
		return fmt.Errorf("open store: address of this member: %w", err)
	}
	c.Name = p.Name
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{*own} // servePeers listens
	c.PeerTLSInfo = p.tls()
	c.TickMs, c.ElectionMs = peerTickMs, peerElectMs
	c.SnapshotCatchUpEntries = peerCatchUpEntries
	c.InitialCluster = p.Name + "=" + p.URL
	if wal.Exist(filepath.Join(c.Dir, "member", "wal")) {
		return nil // its files say who the others are
	}
	c.ClusterState = embed.ClusterStateFlagExisting
	if len(p.Join) == 0 {
		return lostStore(c.Dir)
	}
	c.InitialCluster, err = p.initialCluster(c.Dir)
	return err
}

// lostStore is of a member that has run before, and has no files any more. Its vote counts
// as that of one which has all that it acknowledged: with an empty store it could elect a
// leader that lacks the same, and what the cluster has acknowledged would be gone.
func lostStore(dir string) error {
	return fmt.Errorf("open store: the store in %s is lost, and other coordinators count on what it had: move %s away, and have this "+
		"machine take its own place: shoal join --coordinator --replace TOKEN (a witness: --witness)",
		dir, filepath.Dir(dir))
}

// initialCluster asks the others who is a member. All are to be named, and this one
// by its name, though it has not told it to them yet.
func (p *Peers) initialCluster(dir string) (string, error) {
	members, err := p.askMembers(p.Join)
	if err != nil {
		return "", err
	}
	var all []string
	found := false
	for _, m := range members {
		name := fmt.Sprintf("member-%x", uint64(m.ID)) // unlike any host's
		for _, u := range m.PeerURLs {
			if u == p.URL {
				if m.Name != "" { // it has told them
					return "", lostStore(dir)
				}
				name, found = p.Name, true
			}
		}
		for _, u := range m.PeerURLs {
			all = append(all, name+"="+u)
		}
	}
	if !found {
		return "", fmt.Errorf(
			"open store: the cluster does not know a coordinator at %s (it may have waited for it for too long): join again with a new token",
			p.URL)
	}
	return strings.Join(all, ","), nil
}

// askMembers asks one after the other.
func (p *Peers) askMembers(urls []string) ([]*membership.Member, error) {
	config, err := p.tls().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	t := &http.Transport{TLSClientConfig: config}
	defer t.CloseIdleConnections()
	client := &http.Client{Transport: t, Timeout: handshakeTime}
	var failed []error
	for _, at := range urls {
		members, err := getMembers(client, at)
		if err == nil {
			return members, nil
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("open store: ask the other coordinators who belongs to the cluster: %w",
		errors.Join(failed...))
}

func getMembers(client *http.Client, at string) (list []*membership.Member, err error) {
	r, err := client.Get(at + "/members")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", at, r.Status)
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxMembersBytes)).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return list, nil
}

// peerServer is what other members connect to.
type peerServer struct{ http *http.Server }

// servePeers listens. etcd would by itself, if it were told so at its start; its own
// listener lets connections wait for ever before they have said who they are.
func servePeers(s *etcdserver.EtcdServer, p Peers, log *slog.Logger) (*peerServer, error) {
	config, err := p.tls().ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("serve other coordinators: %w", err)
	}
	config.NextProtos = []string{"http/1.1"} // as peers speak
	config.MinVersion = tls.VersionTLS12
	l, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return nil, fmt.Errorf("serve other coordinators: %w; choose another port with --peer-port", err)
	}
	if p.Limit != nil {
		l = p.Limit(l)
	}
	mux := http.NewServeMux()
	mux.Handle("/", etcdhttp.NewPeerHandler(s.Logger(), s))
	if p.Also != nil {
		mux.Handle(AlsoPath, p.Also)
	}
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: handshakeTime,
		IdleTimeout:       time.Minute,
		// Anybody can have it say that a handshake failed.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	go func() { _ = server.Serve(tls.NewListener(l, config)) }()
	return &peerServer{http: server}, nil
}

// close ends all connections: streams of other members have no end of their own.
func (p *peerServer) close() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.http.Shutdown(ctx)
	_ = p.http.Close()
}
