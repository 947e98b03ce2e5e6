package serving

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
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
	if err := writeFile(m.File, bytes.Join([][]byte{m.header(), certPEM, keyPEM}, nil)); err != nil {
		m.Log.Warn("the serving certificate is not kept for the next start", "err", err)
	}
	m.current.Store(newSigned(c))
	m.Log.Info("the cluster has signed this node's serving certificate", "names", c.Leaf.DNSNames,
		"addresses", c.Leaf.IPAddresses,
		"until", c.Leaf.NotAfter.Format(time.RFC3339))
	return nil
}

// header is the file's first line: the cluster that the certificate is of.
func (m *Manager) header() []byte {
	sum := sha256.Sum256(m.Cluster)
	return []byte("cluster " + hex.EncodeToString(sum[:]) + "\n")
}

// load takes the certificate of an earlier start, if it is of this cluster and
// this node, and still good.
func (m *Manager) load() {
	c, err := m.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		m.Log.Info("the serving certificate of an earlier start is not used, a new one is asked for",
			"file", m.File, "why", err)
	default:
		m.current.Store(newSigned(*c))
	}
}

func (m *Manager) read() (*tls.Certificate, error) {
	f, err := os.Open(m.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, err
	}
	return m.decode(data)
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
