package pki

import (
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"
)

// At each step of a rotation of the CA what the old and what the new one has signed is
// believed, but for the last, and certificates are made anew by the one that signs.
func TestRotateCA(t *testing.T) {
	now, d := time.Now(), Dir(t.TempDir())
	if err := d.Ensure(Cluster{}, now); err != nil {
		t.Fatal(err)
	}
	next := func(want Phase) Files {
		t.Helper()
		files, err := d.ReadFiles(CAs.Files...)
		if err != nil {
			t.Fatal(err)
		}
		at, files, err := CAs.Next(files, now)
		if err != nil || at != want {
			t.Fatalf("%q, %v", at, err)
		}
		if err := d.Replace(files, CAs.Files...); err != nil {
			t.Fatal(err)
		}
		if err := d.Ensure(Cluster{}, now); err != nil {
			t.Fatal(err)
		}
		return files
	}
	issued := func() *x509.Certificate {
		t.Helper()
		ca, err := d.CA()
		if err != nil {
			t.Fatal(err)
		}
		data, _, err := ca.Issue(Spec{User: "u"}, now)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := parseCert(data)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	believed := func(c *x509.Certificate) bool {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(read(t, d, CAFile)))
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	}
	old, shown := issued(), read(t, d, "apiserver.crt")
	if files := next(Added); len(mustAuthorities(t, files)) != 2 || read(t, d, "apiserver.crt") != shown {
		t.Error("the new one signs before it is believed")
	}
	if second := issued(); second.CheckSignatureFrom(mustTrusted(t, d)[0]) != nil || !believed(old) || !believed(second) {
		t.Error("the old one does not sign any more")
	}
	if files := next(Signing); len(mustAuthorities(t, files)) != 2 || read(t, d, "apiserver.crt") == shown {
		t.Error("the API server shows what the old one has signed")
	}
	third := issued()
	if third.Issuer.CommonName == old.Issuer.CommonName || !believed(old) || !believed(third) {
		t.Error("the new one does not sign, or the old one is not believed")
	}
	next(Whole)
	if believed(old) || !believed(third) || !believed(issued()) {
		t.Error("the old one is believed still, or the new one is not")
	}
	if left, err := d.ReadFiles(caNextKey, caOldKey); err != nil || len(left) > 0 {
		t.Errorf("keys are left: %v", err)
	}
}

func mustTrusted(t *testing.T, d Dir) []*x509.Certificate {
	t.Helper()
	files, err := d.ReadFiles(CAFile)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := files.Trusted()
	if err != nil {
		t.Fatal(err)
	}
	return certs
}

func mustAuthorities(t *testing.T, f Files) []*Authority {
	t.Helper()
	list, err := f.Authorities()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A crash while files are replaced leaves the old ones, or what the next start completes.
func TestReplaceIsCompleted(t *testing.T) {
	now, d := time.Now(), Dir(t.TempDir())
	if err := d.Ensure(Cluster{}, now); err != nil {
		t.Fatal(err)
	}
	files, err := d.ReadFiles(CAs.Files...)
	if err != nil {
		t.Fatal(err)
	}
	_, files, err = CAs.Next(files, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, files, err = CAs.Next(files, now); err != nil {
		t.Fatal(err)
	}
	// The journal and the first file are written, and the power fails.
	if err := d.Replace(files, CAs.Files...); err != nil {
		t.Fatal(err)
	}
	again := Dir(t.TempDir())
	if err := again.Ensure(Cluster{}, now); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(again.Path(journal), []byte(`{"files":{"`+CAFile+`":"!"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := again.Ensure(Cluster{}, now); err == nil || !strings.Contains(err.Error(), journal) {
		t.Errorf("a damaged journal: %v", err)
	}
	data, err := replacementOf(files, CAs.Files)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(again.Path(journal), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(again.Path(CAFile), files[CAFile], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := again.Ensure(Cluster{}, now); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{CAFile, "ca.key", caOldKey} {
		if read(t, again, name) != read(t, d, name) {
			t.Errorf("%s is another one", name)
		}
	}
	if _, err := os.Stat(again.Path(journal)); err == nil {
		t.Error("the journal is left")
	}
}
