package serving

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookAfter is how old a look at the files may be when a caller comes. Callers have them
// looked at: nothing waits, and nothing is watched, while nobody calls.
const lookAfter = time.Second

// Files is the certificate that an administrator, or who renews it for him, puts into two
// files. It is followed. A pair that cannot be used, as one of which the half is written,
// leaves the one before.
type Files struct {
	Cert, Key string
	Log       *slog.Logger

	mu     sync.Mutex
	shown  *tls.Certificate
	pem    [2][]byte // what shown is of
	looked time.Time
	told   string
}

// FromFiles reads the pair, which has to be there at first.
func FromFiles(certFile, keyFile string, log *slog.Logger) (*Files, error) {
	f := &Files{Cert: certFile, Key: keyFile, Log: log, looked: time.Now()}
	if _, err := f.read(); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return f, nil
}

// Certificate is for tls.Config.GetCertificate.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.looked) >= lookAfter {
		f.looked = now
		f.follow()
	}
	return f.shown, nil
}

// follow takes what is in the files, and tells once of what cannot be used.
func (f *Files) follow() {
	changed, err := f.read()
	switch {
	case err == nil:
		f.told = ""
		if changed {
			f.Log.Info("the serving certificate is another one now", "tlsCertFile", f.Cert,
				"expires", f.shown.Leaf.NotAfter)
		}
	case f.told != err.Error():
		f.told = err.Error()
		f.Log.Error("the serving certificate stays what it was: its files cannot be used", "tlsCertFile", f.Cert,
			"tlsPrivateKeyFile", f.Key, "err", err)
	}
}

// read tells whether the pair is another than the one that is shown, which it is then.
func (f *Files) read() (changed bool, err error) {
	var text [2][]byte
	for i, name := range []string{f.Cert, f.Key} {
		if text[i], err = os.ReadFile(name); err != nil {
			return false, err
		}
	}
	if f.shown != nil && bytes.Equal(text[0], f.pem[0]) && bytes.Equal(text[1], f.pem[1]) {
		return false, nil
	}
	c, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return false, fmt.Errorf("%s, %s: %w", f.Cert, f.Key, err)
	}
	f.shown, f.pem = &c, text
	return true, nil
}
