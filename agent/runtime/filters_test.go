package runtime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A seccomp profile is translated for the first of its containers; the next ones are
// confined by the same filter, and those of other profiles by theirs. runc translates
// each time.
func TestProfileTranslatedOnce(t *testing.T) {
	for _, handler := range []string{"runc", "crun"} {
		t.Run(handler, func(t *testing.T) {
			g := newRig(t)
			g.importImage()
			pod, err := g.r.RunPodSandbox(t.Context(), g.podConfig(), handler)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"first", "second", "third"} {
				id := g.refusing(pod, name, "mkdir")
				if given := g.translated(id); given != (handler == "crun" && name != "first") {
					t.Errorf("%s: is given a translation: %t", name, given)
				}
				if !g.refused(id, "mkdir", "/tmp/d") || g.refused(id, "ln", "-s", "a", "/tmp/l") {
					t.Errorf("%s: the profile does not do what it says", name)
				}
			}
			other := g.refusing(pod, "other", "symlink")
			if g.translated(other) || g.refused(other, "mkdir", "/tmp/d") || !g.refused(other, "ln", "-s", "a", "/tmp/l") {
				t.Error("another profile does not do what it says")
			}
		})
	}
}

// refusing starts a container in which one system call is refused.
func (g *rig) refusing(pod, name, call string) (id string) {
	g.t.Helper()
	profile := filepath.Join(g.dir, call+".json")
	if err := os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_ALLOW",
		"syscalls":[{"names":["`+call+`"],"action":"SCMP_ACT_ERRNO"}]}`), 0o600); err != nil {
		g.t.Fatal(err)
	}
	c := shell(name, forever)
	c.Linux.SecurityContext.Seccomp = &criv1.SecurityProfile{
		ProfileType: criv1.SecurityProfile_Localhost, LocalhostRef: profile}
	return g.start(pod, c)
}

// refused tells whether the kernel does not permit what a command does.
func (g *rig) refused(id string, cmd ...string) bool {
	g.t.Helper()
	_, stderr, err := g.r.ExecSync(context.Background(), id, append([]string{"busybox"}, cmd...), 0)
	if err != nil && !strings.Contains(string(stderr), "not permitted") {
		g.t.Fatalf("%q: %v: %s", cmd, err, stderr)
	}
	return err != nil
}

// translated tells whether the OCI runtime was given a filter.
func (g *rig) translated(id string) bool {
	g.t.Helper()
	b, err := os.ReadFile(filepath.Join(g.containerPath("run", id), "config.json"))
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.Contains(string(b), "run.oci.seccomp_bpf_data")
}
