package pki

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	data, err := json.Marshal(replacementOf(files, CAs.Files))
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

// Files that change together are read together, and what Replace has written is there when
// it returns, whoever reads, or replaces them too, meanwhile.
func TestReplaceTogether(t *testing.T) {
	d := Dir(t.TempDir())
	all := func(n string) Files {
		return Files{CAFile: []byte(n), "ca.key": []byte(n), caNextKey: []byte(n)}
	}
	if err := d.Replace(all("0"), CAs.Files...); err != nil {
		t.Fatal(err)
	}
	same := func(f Files) bool {
		return string(f[CAFile]) == string(f["ca.key"]) && string(f[CAFile]) == string(f[caNextKey])
	}
	var others sync.WaitGroup
	var stop atomic.Bool
	for range 4 {
		others.Go(func() {
			for !stop.Load() {
				f, err := d.ReadFiles(CAs.Files...)
				if err != nil || !same(f) {
					t.Errorf("%s, %v", f, err)
					return
				}
			}
		})
	}
	others.Go(func() { // of another set
		for !stop.Load() {
			want := Files{"sa.key": []byte("k"), "sa.pub": []byte("p")}
			if err := d.Replace(want, ServiceAccounts.Files...); err != nil {
				t.Error(err)
				return
			}
			f, err := d.ReadFiles(ServiceAccounts.Files...)
			if err != nil || string(f["sa.key"]) != "k" || string(f["sa.pub"]) != "p" {
				t.Errorf("the other set: %s, %v", f, err)
				return
			}
		}
	})
	for i := range 50 {
		n := strconv.Itoa(i)
		if err := d.Replace(all(n), CAs.Files...); err != nil {
			t.Error(err)
		}
		if f, err := d.ReadFiles(CAs.Files...); err != nil || !same(f) || string(f[CAFile]) != n {
			t.Errorf("%s is not there: %s, %v", n, f, err)
		}
	}
	stop.Store(true)
	others.Wait()
}

// Who cannot have the lock says so, and writes nothing.
func TestReplaceLocked(t *testing.T) {
	t.Parallel()
	d := Dir(t.TempDir())
	if err := d.Replace(Files{"sa.key": []byte("before")}, ServiceAccounts.Files...); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(d.Path(lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := d.Replace(Files{"sa.key": []byte("after")}, ServiceAccounts.Files...); err == nil {
		t.Error("it says that they are replaced")
	}
	if read(t, d, "sa.key") != "before" {
		t.Error("they are replaced without the lock")
	}
}

// What root completes in another user's place is that user's.
func TestReplaceOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("who is not root gives nothing away")
	}
	d := Dir(t.TempDir())
	data, err := json.Marshal(replacementOf(Files{"sa.key": []byte("k")}, ServiceAccounts.Files))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path(journal), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d.Path(journal), 12345, 12346); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadFiles("sa.key"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(d.Path("sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 12346 || info.Mode().Perm() != 0o600 {
		t.Errorf("owner %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
	}
	if info, err = os.Stat(d.Path(lockFile)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the lock is one that its user cannot have: %v, %v", info.Mode(), err)
	}
}

// What does not fit together is not given to another coordinator.
func TestSharedFits(t *testing.T) {
	now := time.Now()
	one, other := Dir(t.TempDir()), Dir(t.TempDir())
	for _, d := range []Dir{one, other} {
		if err := d.Ensure(Cluster{}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(one.Path("ca.key"), []byte(read(t, other, "ca.key")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Shared(); err == nil || !strings.Contains(err.Error(), "ca.key: it is not that of the first certificate") {
		t.Errorf("a key of another CA: %v", err)
	}
}
