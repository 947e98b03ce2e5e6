package trust

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"os"
)

// MaxBytes bounds a list of CAs, and MaxCAs how many of it are believed.
const (
	MaxBytes = 64 << 10
	MaxCAs   = 8
)

// Parse reads certificates of CAs, and nothing else.
func Parse(data []byte) (list []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !c.IsCA || len(list) == MaxCAs {
			return nil, errors.New("it is no list of CAs")
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return list, nil
}

// Head begins the file of CAs that were learned with a kubeconfig whose own are given.
func Head(kubeconfigCA []byte) []byte {
	sum := sha256.Sum256(kubeconfigCA)
	return []byte("# learned with " + hex.EncodeToString(sum[:]) + "\n")
}

// Read returns the CAs of the file, nil if they were learned with another kubeconfig.
func Read(file string, kubeconfigCA []byte) []byte {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1<<10))
	if err != nil {
		return nil
	}
	data, ok := bytes.CutPrefix(data, Head(kubeconfigCA))
	if !ok {
		return nil
	}
	if _, err := Parse(data); err != nil {
		return nil
	}
	return data
}
