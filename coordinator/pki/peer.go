package pki

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"
)

// Members of the store trust nobody but who has a certificate of a CA that is for
// nothing else: nodes have certificates of the cluster's. The file names are kubeadm's.
const (
	PeerCAFile   = "etcd/ca.crt"
	PeerCertFile = "etcd/peer.crt"
	PeerKeyFile  = "etcd/peer.key"
)

// EnsurePeer makes what a member of the store shows to others, and checks them with:
// the CA when there is none, and a certificate for the addresses by which they reach it,
// which lives for CertLifetime when lifetime is zero.
func (d Dir) EnsurePeer(ips []net.IP, lifetime time.Duration, now time.Time) error {
	if err := os.MkdirAll(d.Path("etcd"), 0o700); err != nil {
		return fmt.Errorf("make keys: %w", err)
	}
	ca, err := d.ensureCA("etcd/ca", "shoal-etcd-ca", now)
	if err != nil {
		return err
	}
	s := Spec{User: "shoal-etcd-peer", IPs: ips, Server: true, Client: true, Lifetime: lifetime}
	return d.ensureCert(peerCert, ca, s, now)
}

// shared are the files that all coordinators of a cluster have alike, each with
// whether a cluster may be without it.
var shared = []struct {
	name     string
	optional bool
	mode     os.FileMode
}{
	{CAFile, false, 0o644},
	{"ca.key", false, 0o600},
	{"front-proxy-ca.crt", false, 0o644},
	{"front-proxy-ca.key", false, 0o600},
	{"sa.key", false, 0o600},
	{"sa.pub", true, 0o644},
	{saNextKey, true, 0o600}, // of a rotation that is under way
	{caNextKey, true, 0o600},
	{caOldKey, true, 0o600},
	{GossipKeyFile, false, 0o600},
	{PeerCAFile, true, 0o644}, // a coordinator that was always alone has none
	{"etcd/ca.key", true, 0o600},
}

// PeerFiles makes a certificate for a member at another address, which has no CA's key.
func (d Dir) PeerFiles(ip net.IP, now time.Time) (map[string][]byte, error) {
	ca, err := d.loadCA("etcd/ca")
	if err != nil {
		return nil, err
	}
	cert, key, err := ca.Issue(Spec{
		User: "shoal-etcd-peer", IPs: []net.IP{ip}, Server: true, Client: true, Lifetime: ca.Cert.NotAfter.Sub(now),
	}, now)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{PeerCAFile: ca.PEM, PeerCertFile: cert, PeerKeyFile: key}, nil
}

// InstallPeer writes what PeerFiles has made.
func (d Dir) InstallPeer(files map[string][]byte) error {
	for _, name := range []string{PeerCAFile, PeerCertFile, PeerKeyFile} {
		if files[name] == nil {
			return fmt.Errorf("install the certificate: %s is missing", name)
		}
	}
	if err := os.MkdirAll(d.Path("etcd"), 0o700); err != nil {
		return fmt.Errorf("install the certificate: %w", err)
	}
	for _, name := range []string{PeerCAFile, PeerKeyFile, PeerCertFile} {
		if err := WriteFile(d.Path(name), files[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Shared reads the files that a further coordinator needs, by their names in the
// directory, as they were at one time.
func (d Dir) Shared() (map[string][]byte, error) {
	var names []string
	for _, f := range shared {
		names = append(names, f.name)
	}
	files, err := d.ReadFiles(names...)
	if err != nil {
		return nil, err
	}
	for _, f := range shared {
		if files[f.name] == nil && !f.optional {
			return nil, fmt.Errorf("read the cluster's keys: %s: %w", d.Path(f.name), fs.ErrNotExist)
		}
	}
	for _, name := range []string{"ca", "front-proxy-ca", "etcd/ca"} {
		if files[name+".crt"] == nil || files[name+".key"] == nil {
			continue
		}
		if err := files.fit(name); err != nil {
			return nil, fmt.Errorf("read the cluster's keys: %w", err)
		}
	}
	return files, nil
}

// fit fails unless the first certificate of a CA's file is of its key.
func (f Files) fit(name string) error {
	cert, err := parseCert(f[name+".crt"])
	if err != nil {
		return fmt.Errorf("load %s.crt: %w", name, err)
	}
	key, err := parseKey(f[name+".key"])
	if err != nil {
		return fmt.Errorf("load %s.key: %w", name, err)
	}
	if !same(key.Public(), cert.PublicKey) {
		return fmt.Errorf("load %s.key: it is not that of the first certificate in %s.crt", name, name)
	}
	return nil
}

// Install writes what Shared has read at another coordinator. It fails, and writes
// nothing, when a file is missing or unknown, or when the directory has keys of
// another cluster.
func (d Dir) Install(files map[string][]byte) error {
	known := map[string]bool{}
	for _, f := range shared {
		known[f.name] = true
		if files[f.name] == nil && !f.optional {
			return fmt.Errorf("install the cluster's keys: %s is missing", f.name)
		}
	}
	for name := range files {
		if !known[name] {
			return fmt.Errorf("install the cluster's keys: %q is none of them", name)
		}
	}
	if old, err := os.ReadFile(d.Path(CAFile)); err == nil && string(old) != string(files[CAFile]) {
		return fmt.Errorf("install the cluster's keys: %s has those of another cluster; move the directory away first",
			d)
	}
	if err := os.MkdirAll(d.Path("etcd"), 0o700); err != nil {
		return fmt.Errorf("install the cluster's keys: %w", err)
	}
	for _, f := range shared {
		if files[f.name] == nil {
			continue
		}
		if err := WriteFile(d.Path(f.name), files[f.name], f.mode); err != nil {
			return err
		}
	}
	return nil
}
