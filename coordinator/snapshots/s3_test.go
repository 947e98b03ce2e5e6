package snapshots

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
)

const (
	here  = "11111111-2222-3333-4444-555555555555"
	there = "11111111-2222-3333-4444-666666666666"
	// accessKey and secret are what the tests' services know.
	accessKey, secret = "ACCESSKEY", "secret-of-the-key"
)

// credentialsFile is one that nobody else may read.
func credentialsFile(t testing.TB, key, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credentials")
	text := "[default]\naws_access_key_id = " + key + "\naws_secret_access_key=" + secret + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// bucketAt is one of a service that speaks TLS by a certificate of its own.
func bucketAt(t testing.TB, endpoint string, ca []byte) Bucket {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	return Bucket{
		Endpoint: endpoint, Name: "backups", Prefix: "clusters/shoal", Region: "us-east-1",
		CredentialsFile: credentialsFile(t, accessKey, secret), CAFile: file,
	}
}

// serve has a handler answer over TLS.
func serve(t testing.TB, h http.Handler) Bucket {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that hang up
	s.StartTLS()
	t.Cleanup(s.Close)
	return bucketAt(t, s.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// inMemory is an S3 service in this process, with an empty bucket.
func inMemory(t testing.TB, around func(http.Handler) http.Handler) Bucket {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	var h http.Handler = gofakes3.New(backend).Server()
	if around != nil {
		h = around(h)
	}
	return serve(t, h)
}

// gateway is a program that serves S3 from a directory and verifies signatures, with an
// empty bucket. `make s3` has it built.
func gateway(t testing.TB) Bucket {
	t.Helper()
	program := os.Getenv("SHOAL_S3_GATEWAY")
	if program == "" {
		t.Skip("SHOAL_S3_GATEWAY names no program: make s3")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "backups"), 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key, pemCert := selfSigned(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--port", address, "--cert", cert, "--key", key,
		"--access", accessKey, "--secret", secret, "--quiet", "posix", dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	for range 600 {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			return bucketAt(t, "https://"+address, pemCert)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the gateway does not listen")
	return Bucket{}
}

func selfSigned(t testing.TB) (cert, key string, data []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "s3"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	data = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(cert, data, 0o600); err != nil {
		t.Fatal(err)
	}
	keyData := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	if err := os.WriteFile(key, keyData, 0o600); err != nil {
		t.Fatal(err)
	}
	return cert, key, data
}

// local is a snapshot in a directory.
func local(t testing.TB, kind string, at time.Time, content string, withKeys bool) Snapshot {
	t.Helper()
	s := Snapshot{File: filepath.Join(t.TempDir(), kind+at.Format(stamp)+database), Time: at, Keys: withKeys}
	if err := os.WriteFile(s.File, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if withKeys {
		if err := os.WriteFile(KeysBeside(s.File), []byte("keys of "+content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (b Bucket) upload(t testing.TB, cluster string, s Snapshot) string {
	t.Helper()
	name, err := b.Upload(t.Context(), cluster, s)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// raw puts an object that is nobody's snapshot.
func (b Bucket) raw(t testing.TB, key string) {
	t.Helper()
	s, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	_, err = s.PutObject(t.Context(), b.Name, key, strings.NewReader("x"), 1, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// everything lists all names in the bucket.
func (b Bucket) everything(t testing.TB) string {
	t.Helper()
	s, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var out []string
	for o := range s.ListObjectsIter(t.Context(), b.Name, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		out = append(out, o.Key)
	}
	return strings.Join(out, "\n")
}

// listed are the names of a cluster's copies, without what all begin with.
func (b Bucket) listed(t testing.TB, cluster string) string {
	t.Helper()
	copies, err := b.List(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range copies {
		name := strings.TrimPrefix(c.File, "s3://backups/clusters/shoal/")
		if c.Keys {
			name += "+keys"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

// services are those that each test of a bucket runs at.
func services(t *testing.T, test func(*testing.T, Bucket)) {
	t.Run("in-memory", func(t *testing.T) { test(t, inMemory(t, nil)) })
	t.Run("gateway", func(t *testing.T) { test(t, gateway(t)) })
}

func at(hour int) time.Time { return time.Date(2026, 11, 25, hour, 0, 0, 0, time.UTC) }

// What is copied is listed and comes back as it was; what is somebody else's is neither
// listed nor deleted, whatever it is called.
func TestBucket(t *testing.T) {
	services(t, func(t *testing.T, b Bucket) {
		if got := b.listed(t, ""); got != "" {
			t.Errorf("an empty bucket has %s", got)
		}
		for _, key := range []string{
			"scheduled-20200101T000000Z.db", "clusters/shoal/scheduled-20200101T000000Z.db",
			"clusters/shoal/" + here + "/scheduled-20200101T000000Z.db.tmp",
			"clusters/shoal/" + here + "/notes.txt",
			"clusters/shoal/" + here + "/more/scheduled-20200101T000000Z.db",
			"clusters/shoal2/" + here + "/scheduled-20200101T000000Z.db",
			"clusters/shoal/" + here + "/scheduled-20209901T000000Z.db",
		} {
			b.raw(t, key)
		}
		others := b.everything(t)
		for hour := range 4 {
			b.upload(t, here, local(t, scheduled, at(hour), fmt.Sprint("at ", hour), true))
		}
		own := b.upload(t, here, local(t, manual, at(1), "mine", false))
		b.upload(t, there, local(t, scheduled, at(1), "theirs", false))
		b.raw(t, "clusters/shoal/"+here+"/scheduled-20200101T000000Z.keys") // was never finished
		const mine = here + "/scheduled-20261125T"
		if got, want := b.listed(t, here), mine+"000000Z.db+keys "+mine+"010000Z.db+keys "+here+
			"/manual-20261125T010000Z.db "+mine+"020000Z.db+keys "+mine+"030000Z.db+keys"; sorted(got) != sorted(want) {
			t.Errorf("%s\nis not\n%s", got, want)
		}
		if got := b.listed(t, ""); !strings.Contains(got, there) || !strings.Contains(got, here) {
			t.Errorf("of all: %s", got)
		}

		if err := b.Prune(t.Context(), here, 2, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got, want := b.listed(t, here), here+"/manual-20261125T010000Z.db "+mine+"020000Z.db+keys "+mine+
			"030000Z.db+keys"; got != want {
			t.Errorf("kept: %s", got)
		}
		if got := b.listed(t, there); got != there+"/scheduled-20261125T010000Z.db" {
			t.Errorf("of the other cluster: %q", got)
		}
		left := b.everything(t)
		for key := range strings.SplitSeq(others, "\n") {
			if !strings.Contains("\n"+left+"\n", "\n"+key+"\n") {
				t.Errorf("%s is gone", key)
			}
		}
		if strings.Contains(left, "clusters/shoal/"+here+"/scheduled-20200101T000000Z.keys") ||
			strings.Contains(left, mine+"010000Z") {
			t.Errorf("what is old stays:\n%s", left)
		}

		dir := t.TempDir()
		file, err := b.Download(t.Context(), "s3://backups/clusters/shoal/"+mine+"020000Z.db", dir)
		if err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{file: "at 2", KeysBeside(file): "keys of at 2"} {
			if got, err := os.ReadFile(file); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", file, got, err)
			}
		}
		if file, err = b.Download(t.Context(), own, t.TempDir()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(KeysBeside(file)); err == nil {
			t.Error("keys came from nowhere")
		}
		for name, want := range map[string]string{
			"s3://backups/clusters/shoal/" + mine + "220000Z.db": "it is not there",
			"s3://other/clusters/shoal/" + mine + "020000Z.db":   "snapshotS3Bucket",
			"s3://backups/etc/passwd":                            "no name of a snapshot",
			"s3://backups/clusters/shoal/" + mine + "0.keys":     "no name of a snapshot",
		} {
			if _, err := b.Download(t.Context(), name, dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func sorted(words string) string {
	f := strings.Fields(words)
	for i := range f { // of some words
		for j := range i {
			if f[i] < f[j] {
				f[i], f[j] = f[j], f[i]
			}
		}
	}
	return strings.Join(f, " ")
}

// A copy whose line broke is no snapshot, in the list or otherwise, and the next attempt
// is whole.
func TestInterrupted(t *testing.T) {
	var cuts atomic.Int64
	b := inMemory(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, database) && cuts.Add(1) <= attempts {
				r.Body = &cut{ReadCloser: r.Body, left: 1000}
				defer panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	s := local(t, scheduled, at(1), strings.Repeat("x", 1<<20), true)
	if _, err := b.Upload(t.Context(), here, s); err == nil {
		t.Error("nobody was told")
	}
	if cuts.Load() == 0 {
		t.Error("nothing was cut")
	}
	if got := b.listed(t, here); got != "" {
		t.Errorf("what is not whole is listed: %s", got)
	}
	if all := b.everything(t); strings.Contains(all, database) {
		t.Errorf("it is there: %s", all)
	}
	cuts.Store(attempts)
	b.upload(t, here, s)
	if got := b.listed(t, here); got != here+"/scheduled-20261125T010000Z.db+keys" {
		t.Error(got)
	}
}

// cut ends what is read as a line that broke.
type cut struct {
	io.ReadCloser
	left int
}

func (c *cut) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// Parts of a copy whose coordinator died are not listed, and are deleted a day later, not
// those of others and not before.
func TestAbandonedParts(t *testing.T) {
	services(t, func(t *testing.T, b Bucket) {
		const key = "clusters/shoal/" + here + "/scheduled-20261125T010000Z.db"
		b.begin(t, key)
		if got := b.listed(t, ""); got != "" {
			t.Errorf("what is not whole is listed: %s", got)
		}
		if err := b.Prune(t.Context(), here, 1, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := b.Prune(t.Context(), there, 1, time.Now().Add(2*abandoned)); err != nil {
			t.Fatal(err)
		}
		if got := b.parts(t); len(got) != 1 {
			t.Errorf("a copy that may be under way, or is another cluster's, is deleted: %v", got)
		}
		if err := b.Prune(t.Context(), here, 1, time.Now().Add(2*abandoned)); err != nil {
			t.Fatal(err)
		}
		if got := b.parts(t); len(got) != 0 {
			t.Errorf("parts stay: %v", got)
		}
	})
}

// begin sends the first part of an object, and no more.
func (b Bucket) begin(t *testing.T, key string) {
	t.Helper()
	s, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	core := minio.Core{Client: s.Client}
	id, err := core.NewMultipartUpload(t.Context(), b.Name, key, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.PutObjectPart(t.Context(), b.Name, key, id, 1, strings.NewReader("x"), 1,
		minio.PutObjectPartOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// A copy of more than one part is whole.
func TestLargeCopy(t *testing.T) {
	b := gateway(t)
	s := local(t, scheduled, at(1), "", false)
	if err := os.Truncate(s.File, partSize+1); err != nil {
		t.Fatal(err)
	}
	file, err := b.Download(t.Context(), b.upload(t, here, s), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != partSize+1 {
		t.Errorf("%v, %v", info, err)
	}
}

// parts are the names of what is unfinished.
func (b Bucket) parts(t *testing.T) (out []string) {
	t.Helper()
	s, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for p := range s.ListIncompleteUploads(t.Context(), b.Name, "", true) {
		if minio.ToErrorResponse(p.Err).Code == minio.NoSuchUpload {
			break
		}
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		out = append(out, p.Key)
	}
	return out
}

// A list without an end, and one of endless words, is given up.
func TestEndlessList(t *testing.T) {
	var pages, words atomic.Int64
	b := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		page := pages.Add(1)
		fmt.Fprintf(w, `<ListBucketResult><IsTruncated>true</IsTruncated>
			<NextContinuationToken>%d</NextContinuationToken>`, page)
		for i := range 1000 {
			fmt.Fprintf(w, `<Contents><Key>clusters/shoal/%d-%d</Key><Size>1</Size></Contents>`, page, i)
		}
		fmt.Fprint(w, `</ListBucketResult>`)
	}))
	_, err := b.List(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "snapshotS3Prefix") || pages.Load() > 21 {
		t.Errorf("%d pages, %v", pages.Load(), err)
	}
	b = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<ListBucketResult><Name>`)
		for i := 0; i < 64 && r.Context().Err() == nil; i++ {
			n, _ := w.Write(bytes.Repeat([]byte("x"), 1<<20))
			words.Add(int64(n))
		}
	}))
	if _, err := b.List(t.Context(), ""); err == nil {
		t.Errorf("%d MiB were read as a list", words.Load()>>20)
	}
}
