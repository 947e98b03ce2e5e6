package runtime

import (
	"fmt"
	"os"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// attack is what a container with SYS_PTRACE tries with the pod's first
// process. It prints what it got.
const attack = `
cat /proc/1/environ
head -c 64 /proc/1/mem 2>/dev/null
for d in root cwd root/proc/1/root; do
	cat /proc/1/$d/etc/shadow /proc/1/$d/../etc/shadow 2>/dev/null
	ls -A /proc/1/$d 2>/dev/null
	touch /proc/1/$d/x 2>/dev/null && echo wrote in $d
done
ls /proc/1/fd
(echo x >>/proc/1/exe) 2>/dev/null && echo wrote to exe
for s in TERM QUIT SEGV URG KILL USR1; do kill -$s 1; done
true`

// SEC: a pod's containers share a PID namespace. Its first process can be
// reached from a container with SYS_PTRACE, and is worth nothing.
func TestPauseProcess(t *testing.T) {
	ids := []*criv1.IDMapping{{HostId: 1 << 20, Length: 1 << 16}}
	for name, users := range map[string]*criv1.UserNamespace{"node's users": nil,
		"own users": {Mode: criv1.NamespaceMode_POD, Uids: ids, Gids: ids}} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			g := newRig(t)
			if err := os.Chmod(g.dir, 0o711); err != nil { // mapped users come through
				t.Fatal(err)
			}
			g.importImage()
			config := g.podConfig()
			options := config.Linux.SecurityContext.NamespaceOptions
			options.Pid, options.UsernsOptions = criv1.NamespaceMode_POD, users
			pod := g.run(config)
			c := shell("c", forever)
			c.Linux.SecurityContext.NamespaceOptions = options
			c.Linux.SecurityContext.Capabilities = &criv1.Capability{AddCapabilities: []string{"SYS_PTRACE", "DAC_READ_SEARCH"}}
			id := g.start(pod, c)
			g.confined(id)
			if got := g.exec(id, "sh", "-c", attack); got != "" {
				t.Errorf("a container got from the first process:\n%s", got)
			}
			g.reaps(id)
			g.reopen()
			g.confined(id)
			if err := g.r.StopPodSandbox(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// confined checks what the kernel says of all threads of the first process.
func (g *rig) confined(id string) {
	g.t.Helper()
	status := g.exec(id, "sh", "-c", "cat /proc/1/task/*/status")
	threads := strings.Count(status, "Name:")
	for _, want := range []string{"Uid:\t65535\t65535\t65535\t65535", "Gid:\t65535\t65535\t65535\t65535",
		"NoNewPrivs:\t1", "Seccomp:\t2",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000"} {
		if n := strings.Count(status, want); n != threads || n == 0 {
			g.t.Errorf("%d of %d threads have %q\n%s", n, threads, want, status)
		}
	}
	if got := g.exec(id, "cat", "/proc/1/cmdline"); got != "/pause\x00" {
		g.t.Errorf("its command line is %q", got)
	}
	if got := g.exec(id, "sh", "-c", "grep -c . /proc/1/mountinfo"); got != "1\n" {
		g.t.Errorf("it has %s file systems", got)
	}
	holder := 0
	for _, s := range g.r.sandboxes.List() {
		holder = s.HolderPID
	}
	if fields := g.threads(holder); fields != threads {
		g.t.Errorf("the container sees %d threads of %d", threads, fields)
	}
}

func (g *rig) threads(pid int) int {
	g.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		g.t.Fatal(err)
	}
	return len(entries)
}

// reaps leaves orphans that end, in the hands of the first process.
func (g *rig) reaps(id string) {
	g.t.Helper()
	g.exec(id, "sh", "-c", "for i in 1 2 3; do (sleep 0 & exec true) & done; wait; sh -c '(sleep 0.1; exit 3) & kill -9 $$' || true")
	eventually(g.t, "no zombie is left", func() bool {
		return !strings.Contains(g.exec(id, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true"), ") Z ")
	})
}
