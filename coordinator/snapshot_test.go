package main

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A machine that has lost everything gets the cluster back of a snapshot, straight from
// a bucket, the keys beside it and the passphrase: its Secrets, its CA.
func TestSnapshotAndRestore(t *testing.T) {
	f := newThree(t)
	a := f.machine("a", "127.0.0.31")
	secret := filepath.Join(t.TempDir(), "passphrase")
	if err := os.WriteFile(secret, []byte("correct horse battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.args = append(a.args, "--snapshot-passphrase-file", secret)
	service := withBucket(t, a)
	f.start(a)
	f.writeThrough(a)
	file := filepath.Join(t.TempDir(), "cluster.db")
	out, err := a.run(t.Context(), "snapshot", "save", "--s3", file)
	if err != nil || !strings.Contains(out, file) {
		t.Fatalf("%s, %v", out, err)
	}
	lines := strings.Fields(out)
	name := lines[len(lines)-1]
	out, err = a.run(t.Context(), "snapshot", "list")
	if err != nil || !strings.Contains(out, "manual-") || !strings.Contains(out, name) ||
		strings.Count(out, "yes") != 2 {
		t.Errorf("no %s in %s, %v", name, out, err)
	}
	ca := readFile(t, keysOf(a.dir).Path("ca.crt"))
	late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	if _, err := a.c.CoreV1().ConfigMaps("default").Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.run(t.Context(), "snapshot", "restore", file); err == nil || !strings.Contains(err.Error(), "another coordinator") {
		t.Errorf("restored under a coordinator that runs: %v", err)
	}
	a.kill()
	if err := os.RemoveAll(a.dir + "/coordinator"); err != nil {
		t.Fatal(err)
	}
	if out, err = a.run(t.Context(), "snapshot", "list"); err != nil || !strings.Contains(out, name) {
		t.Errorf("on a machine that has nothing: %s, %v", out, err)
	}
	if _, err := a.run(t.Context(), "snapshot", "restore", file); err == nil || !strings.Contains(err.Error(), "give --passphrase-file") {
		t.Errorf("without the passphrase: %v", err)
	}
	if out, err = a.run(t.Context(), "snapshot", "restore", name, "--passphrase-file", secret); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	if left, err := filepath.Glob(a.dir + "/coordinator/restore-*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	f.start(a)
	if readFile(t, keysOf(a.dir).Path("ca.crt")) != ca {
		t.Error("the CA is another one")
	}
	s, err := a.c.CoreV1().Secrets("default").Get(t.Context(), "by-a", metav1.GetOptions{})
	if err != nil || string(s.Data["k"]) != "by-a" {
		t.Errorf("the Secret: %v, %v", s, err)
	}
	if _, err := a.c.CoreV1().ConfigMaps("default").Get(t.Context(), "late", metav1.GetOptions{}); err == nil {
		t.Error("what came after the snapshot is there")
	}
	service.Close()
	out, err = a.run(t.Context(), "snapshot", "list")
	if err == nil || !strings.Contains(err.Error(), "snapshotS3Endpoint") || !strings.Contains(out, "FILE") {
		t.Errorf("without the service: %s, %v", out, err)
	}
}

// withBucket has a coordinator copy snapshots to an S3 service in this process.
func withBucket(t *testing.T, o *one) *httptest.Server {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	service := httptest.NewTLSServer(gofakes3.New(backend).Server())
	t.Cleanup(service.Close)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw})
	o.args = append(o.args, "--snapshot-s3-endpoint", service.URL, "--snapshot-s3-bucket", "backups",
		"--snapshot-s3-credentials-file", write("credentials", []byte("aws_access_key_id = a\naws_secret_access_key = b\n")),
		"--snapshot-s3-cafile", write("ca.crt", cert))
	return service
}
