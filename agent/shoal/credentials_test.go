package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// TestCredentials: a kubeconfig that serves stays; all others are made anew,
// those of earlier versions too.
func TestCredentials(t *testing.T) {
	const day = 24 * time.Hour
	admin := pki.Spec{User: pki.AdminUser, Groups: []string{pki.AdminGroup}, Lifetime: 90 * day}
	node := pki.Spec{User: "system:node:n1", Groups: []string{"system:nodes"}, Lifetime: 90 * day}
	masters, endingAdmin, endingNode := admin, admin, node
	masters.Groups = []string{"system:masters"}
	endingAdmin.Lifetime, endingNode.Lifetime = 29*day, 29*day
	both := []string{"kubeconfig", "agent/kubeconfig"}
	for _, tt := range []struct {
		name        string
		admin, node *pki.Spec // nil: there is no file
		stranger    bool      // they are of another CA
		renewed     []string
	}{
		{name: "none", renewed: both},
		{name: "fresh", admin: &admin, node: &node},
		{name: "ends_soon", admin: &endingAdmin, node: &endingNode, renewed: both},
		{name: "of_masters", admin: &masters, node: &node, renewed: both[:1]},
		{name: "no_node", admin: &admin, renewed: both[1:]},
		{name: "of_another_CA", admin: &admin, node: &node, stranger: true, renewed: both},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := defaultOptions()
			o.DataDir, o.NodeName = t.TempDir(), "n1"
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(o.save())
			signer := o.keys()
			must(signer.Ensure(pki.Cluster{}, time.Now()))
			if tt.stranger {
				signer = pki.Dir(t.TempDir())
				must(signer.Ensure(pki.Cluster{}, time.Now()))
			}
			ca, err := signer.CA()
			must(err)
			before := map[string]string{}
			for file, spec := range map[string]*pki.Spec{both[0]: tt.admin, both[1]: tt.node} {
				if spec != nil {
					data, err := ca.Kubeconfig("https://127.0.0.1:6443", *spec, time.Now())
					must(err)
					must(os.WriteFile(o.path(file), data, 0o600))
					before[file] = string(data)
				}
			}
			putOnPath(t, coordinatorBin)
			must(credentials(t.Context(), o))
			for file, user := range map[string]string{both[0]: pki.AdminUser, both[1]: "system:node:n1"} {
				data, err := os.ReadFile(o.path(file))
				must(err)
				if renewed := string(data) != before[file]; renewed != slices.Contains(tt.renewed, file) {
					t.Errorf("%s is made anew: %v", file, renewed)
				}
				cert, err := certificateOf(o.path(file))
				must(err)
				own, err := os.ReadFile(o.keys().Path(pki.CAFile))
				must(err)
				if cert.Subject.CommonName != user || !fresh(o.path(file), own) || aboveRBAC(o.path(file)) {
					t.Errorf("%s has %s until %s", file, cert.Subject, cert.NotAfter)
				}
			}
		})
	}
}

// putOnPath makes this program a daemon's, which the command finds.
func putOnPath(t *testing.T, name string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bin")
	if err := errors.Join(os.Mkdir(dir, 0o755), putProgram(dir, name)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

// putProgram puts this program into a directory by several names: links, where the tests
// were not linked on another file system.
func putProgram(dir string, names ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.Link(self, path); err == nil {
			continue
		}
		// Not by this process: what it writes cannot be run while it makes another.
		if out, err := exec.Command("cp", self, path).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		self = path
	}
	return nil
}
