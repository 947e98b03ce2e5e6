package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A machine that has lost everything gets the cluster back of a snapshot, the keys
// beside it and the passphrase: its Secrets, its CA.
func TestSnapshotAndRestore(t *testing.T) {
	f := newThree(t)
	a := f.machine("a", "127.0.0.31")
	secret := filepath.Join(t.TempDir(), "passphrase")
	if err := os.WriteFile(secret, []byte("correct horse battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.args = append(a.args, "--snapshot-passphrase-file", secret)
	f.start(a)
	f.writeThrough(a)
	file := filepath.Join(t.TempDir(), "cluster.db")
	out, err := a.run(t.Context(), "snapshot", "save", file)
	if err != nil || !strings.Contains(out, file) {
		t.Fatalf("%s, %v", out, err)
	}
	out, err = a.run(t.Context(), "snapshot", "list")
	if err != nil || !strings.Contains(out, "manual-") || !strings.Contains(out, "yes") {
		t.Errorf("%s, %v", out, err)
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
	if _, err := a.run(t.Context(), "snapshot", "restore", file); err == nil || !strings.Contains(err.Error(), "give --passphrase-file") {
		t.Errorf("without the passphrase: %v", err)
	}
	if out, err = a.run(t.Context(), "snapshot", "restore", file, "--passphrase-file", secret); err != nil {
		t.Fatalf("%s, %v", out, err)
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
}
