package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// as runs a program of the node as another user, and tells whether it may.
func as(uid uint32, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestFilesAreRootsAlone: no user of the node reaches a file of a container, so
// that a set-user-ID program in it makes nobody root; also after an agent of
// before left the directories open. Containers of other users work.
func TestFilesAreRootsAlone(t *testing.T) {
	const first, size = 1 << 20, 1 << 16
	g := newRig(t)
	if err := os.Chmod(g.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	g.importImage()
	pod := g.run(g.podConfig())
	setuid := "cp /bin/busybox /become; chmod 4755 /become; "
	plain := g.start(pod, shell("plain", setuid+forever))
	other := shell("other", forever)
	other.Linux.SecurityContext.RunAsUser = &criv1.Int64Value{Value: 1000}
	if got := g.exec(g.start(pod, other), "sh", "-c",
		"id -u; cat /etc/resolv.conf >/dev/null && ls / >/dev/null && echo ok"); got != "1000\nok\n" {
		t.Errorf("another user in a container: %q", got)
	}
	config := g.podConfig()
	config.Metadata.Uid = "uid-2"
	ids := []*criv1.IDMapping{{HostId: first, Length: size}}
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD,
		Uids: ids, Gids: ids}
	mappedPod := g.run(config)
	c := shell("mapped", setuid+forever)
	c.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
	mapped := g.start(mappedPod, c)
	// The image's own volume is made where the layers are.
	fixed := shell("fixed", forever)
	fixed.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
	fixed.Linux.SecurityContext.ReadonlyRootfs = true
	fixedID := g.start(mappedPod, fixed)
	if got := g.exec(fixedID, "sh", "-c",
		"echo x >/data/new && cat /data/new && ! touch /new 2>/dev/null && echo fixed"); got != "x\nfixed\n" {
		t.Errorf("the image's volume of a mapped user: %q", got)
	}
	g.exec(fixedID, "sh", "-c", "head -c 3000000 /dev/zero >/data/big")
	if u, err := g.r.containers.Usage(t.Context(), fixedID); err != nil || u.Bytes < 3000000 {
		t.Errorf("what is in the image's volume is not measured: %+v, %v", u, err)
	}

	dirs := func(sandbox, id string) []string {
		return []string{g.containerPath("run", id), g.containerPath("data", id),
			filepath.Join(g.cfg.RunDir, "sandboxes", sandbox)}
	}
	all := append(dirs(pod, plain), dirs(mappedPod, mapped)...)
	check := func(when string) {
		t.Helper()
		for _, id := range []string{plain, mapped} {
			program := filepath.Join(g.containerPath("run", id), "rootfs/become")
			eventually(t, "the program is there", func() bool { _, err := os.Stat(program); return err == nil })
			for _, uid := range []uint32{65534, first + size} {
				if out, err := as(uid, program, "id", "-u"); err == nil {
					t.Errorf("%s: user %d of the node runs a container's set-user-ID program as %s", when, uid, out)
				}
			}
		}
		for _, dir := range all {
			if out, err := as(65534, "/bin/ls", dir+"/."); err == nil {
				t.Errorf("%s: any user lists %s: %s", when, dir, out)
			}
		}
	}
	check("at start")
	for _, dir := range all {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g.reopen()
	check("after a restart")
	g.exec(plain, "true")
	g.exec(mapped, "true")
}

func (g *rig) containerPath(kind, id string) string {
	return filepath.Join(g.dir, kind, "containers", id)
}
