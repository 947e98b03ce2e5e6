package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// TestLocalCredentials: on the first machine the kubeconfigs are made, and made anew
// when they end; what another cluster signed, or nobody can read, stays; without a
// coordinator there are none.
func TestLocalCredentials(t *testing.T) {
	const day = 24 * time.Hour
	serving := &pki.Spec{User: "system:node:n1", Groups: []string{"system:nodes"}, Lifetime: 90 * day}
	ending := &pki.Spec{User: "system:node:n1", Groups: []string{"system:nodes"}, Lifetime: 29 * day}
	for _, tt := range []struct {
		name          string
		node          *pki.Spec // nil: there is no file
		text          string    // of it, instead
		stranger      bool      // it is of another CA
		noCoordinator bool
		written       bool
	}{
		{name: "none", written: true},
		{name: "serves", node: serving},
		{name: "ends_soon", node: ending, written: true},
		{name: "of_another_cluster", node: ending, stranger: true},
		{name: "of_somebody", text: "a token"},
		{name: "no_coordinator", noCoordinator: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, keys := localFiles(t)
			if !tt.noCoordinator {
				check(t, keys.Ensure(pki.Cluster{}, time.Now()))
			}
			file := filepath.Join(filepath.Dir(l.agentFile), "agent", "kubeconfig")
			before := tt.text
			if tt.node != nil {
				before = signed(t, keys, tt.stranger, *tt.node)
			}
			if before != "" {
				check(t, os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(before), 0o600))
			}
			putOnPath(t, coordinatorBin)
			check(t, l.write(t.Context()))
			data, err := os.ReadFile(file)
			if written := err == nil && string(data) != before; written != tt.written {
				t.Errorf("the kubeconfig is written: %v", written)
			}
			cert, err := certificateOf(file)
			if tt.written && (err != nil || cert.Subject.CommonName != "system:node:n1") {
				t.Errorf("the kubeconfig is of %v: %v", cert, err)
			}
			if admin, err := certificateOf(l.admin); (err == nil) == tt.noCoordinator {
				t.Errorf("the administrators' kubeconfig is %v: %v", admin, err)
			}
		})
	}
}

// localFiles are those of a machine's services, below one directory.
func localFiles(t *testing.T) (local, pki.Dir) {
	t.Helper()
	dir := t.TempDir()
	l := local{agentFile: filepath.Join(dir, "agent.yaml"), coordinatorFile: filepath.Join(dir, "coordinator.yaml"),
		admin: filepath.Join(dir, "etc", "admin.kubeconfig")}
	node := "nodeName: n1\nkubeconfig: " + filepath.Join(dir, "agent", "kubeconfig") + "\n"
	check(t, os.WriteFile(l.agentFile, []byte(node), 0o600),
		os.WriteFile(l.coordinatorFile, []byte("dataDir: "+dir+"\n"), 0o600))
	return l, pki.Dir(filepath.Join(dir, "coordinator", "pki"))
}

// signed is a kubeconfig, of the cluster or of another one.
func signed(t *testing.T, keys pki.Dir, stranger bool, spec pki.Spec) string {
	t.Helper()
	if stranger {
		keys = pki.Dir(t.TempDir())
		check(t, keys.Ensure(pki.Cluster{}, time.Now()))
	}
	ca, err := keys.CA()
	check(t, err)
	data, err := ca.Kubeconfig("https://127.0.0.1:6443", spec, time.Now())
	check(t, err)
	return string(data)
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLocalCredentialsFollow: at each step of a rotation of the CA the kubeconfigs are
// made anew, to believe and to show what is right then, and once only.
func TestLocalCredentialsFollow(t *testing.T) {
	l, keys := localFiles(t)
	check(t, keys.Ensure(pki.Cluster{}, time.Now()))
	putOnPath(t, coordinatorBin)
	check(t, l.write(t.Context()))
	for _, cas := range []int{2, 2, 1} {
		files, err := keys.ReadFiles(pki.CAs.Files...)
		check(t, err)
		_, files, err = pki.CAs.Next(files, time.Now())
		check(t, err, keys.Replace(files, pki.CAs.Files...))
		check(t, l.write(t.Context()))
		trusted, err := files.Trusted()
		check(t, err)
		cert, err := certificateOf(l.admin)
		check(t, err)
		has := believes(l.admin, files[pki.CAFile])
		if err := cert.CheckSignatureFrom(trusted[0]); err != nil || len(trusted) != cas || !has {
			t.Errorf("%d CAs: %v, the kubeconfig believes them: %v", len(trusted), err, has)
		}
		before, err := os.ReadFile(l.admin)
		check(t, err, l.write(t.Context()))
		if after, err := os.ReadFile(l.admin); err != nil || string(after) != string(before) {
			t.Errorf("it is written again: %v", err)
		}
	}
}
