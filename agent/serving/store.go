package serving

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// maxFile is more than any certificate with its key takes.
const maxFile = 1 << 20

// take serves a certificate from now on, and keeps it for the next start.
func (m *Manager) take(certPEM, keyPEM []byte) error {
	c, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	pair := bytes.Join([][]byte{certPEM, keyPEM}, nil)
	next := newSigned(c, pair)
	next.early = time.Now().Before(c.Leaf.NotBefore)
	m.keep(next)
	m.Log.Info("the cluster has signed this node's serving certificate", "names", c.Leaf.DNSNames,
		"addresses", c.Leaf.IPAddresses,
		"until", c.Leaf.NotAfter.Format(time.RFC3339))
	return nil
}

// keep writes down the certificate that is shown; with now another is shown from now on.
// Whoever comes last writes what is shown then, never one of before.
func (m *Manager) keep(now *signed) {
	m.keeping.Lock()
	defer m.keeping.Unlock()
	shown := m.current.Load()
	if now != nil {
		shown = now
	}
	if shown == nil {
		return
	}
	if err := writeFile(m.File, append(m.header(), shown.pem...)); err != nil {
		m.Log.Warn("the serving certificate is not kept for the next start", "err", err)
	}
	m.current.Store(shown)
}

// SetCluster takes the cluster's CAs of now. If another one signs, a certificate of it is
// asked for; the one of before is shown meanwhile. told: the cluster says so; others than
// at the start count as told.
func (m *Manager) SetCluster(cas []byte, told bool) {
	m.mu.Lock()
	same, before := bytes.Equal(m.Cluster, cas), m.Told
	m.Cluster, m.Told = cas, m.Told || told || !same
	news := !same || m.Told != before
	m.mu.Unlock()
	if !news {
		return
	}
	if !same {
		m.keep(nil)
	}
	m.Look()
}

// Followed tells whether the CA that signs has signed the certificate that is shown, as
// far as this is known.
func (m *Manager) Followed() bool {
	m.mu.Lock()
	cas, told := m.Cluster, m.Told
	m.mu.Unlock()
	c := m.current.Load()
	if c == nil {
		return false
	}
	block, _ := pem.Decode(cas)
	if !told || block == nil {
		return true
	}
	first, err := x509.ParseCertificate(block.Bytes)
	return err != nil || c.Leaf.CheckSignatureFrom(first) == nil
}

// header is the file's first line: the cluster that the certificate is of.
func (m *Manager) header() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := sha256.Sum256(m.Cluster)
	return []byte("cluster " + hex.EncodeToString(sum[:]) + "\n")
}

// load takes the certificate of an earlier start, if it is of this cluster and
// this node, and still good.
func (m *Manager) load() {
	c, pair, err := m.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		m.Log.Info("the serving certificate of an earlier start is not used, a new one is asked for",
			"file", m.File, "why", err)
	default:
		m.current.Store(newSigned(*c, pair))
	}
}

func (m *Manager) read() (*tls.Certificate, []byte, error) {
	f, err := os.Open(m.File)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, nil, err
	}
	c, err := m.decode(data)
	pair, _ := bytes.CutPrefix(data, m.header())
	return c, pair, err
}

func (m *Manager) decode(data []byte) (*tls.Certificate, error) {
	data, ok := bytes.CutPrefix(data, m.header())
	if !ok {
		return nil, errors.New("it is of another cluster")
	}
	if block, _ := pem.Decode(data); block == nil {
		return nil, errors.New("it is damaged")
	}
	c, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	if c.Leaf.Subject.CommonName != "system:node:"+m.NodeName {
		return nil, fmt.Errorf("it is of %s", c.Leaf.Subject.CommonName)
	}
	if time.Now().After(c.Leaf.NotAfter) {
		return nil, fmt.Errorf("it ended on %s", c.Leaf.NotAfter.Format(time.RFC3339))
	}
	return &c, nil
}

// writeFile replaces the file at once: after a crash it is the old or the new
// one. Nobody but root reads the key.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // made with 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
