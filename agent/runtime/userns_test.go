package runtime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SEC: hostUsers false (KEP-127). Root of the pod is nobody on the node, owns
// its image's files and its volumes, and may change its own network.
func TestUserNamespace(t *testing.T) {
	const first, size = 1 << 20, 1 << 16
	g := newRig(t)
	if err := os.Chmod(g.dir, 0o711); err != nil { // mapped users come through
		t.Fatal(err)
	}
	g.importImage()
	volume := filepath.Join(g.dir, "volume")
	if err := os.MkdirAll(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	config := g.podConfig()
	ids := []*criv1.IDMapping{{HostId: first, Length: size}}
	options := config.Linux.SecurityContext.NamespaceOptions
	options.UsernsOptions = &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD, Uids: ids, Gids: ids}
	options.Pid = criv1.NamespaceMode_POD
	config.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1", "kernel.shm_rmid_forced": "1"}
	pod := g.run(config)
	c := shell("c", forever)
	c.Linux.SecurityContext.NamespaceOptions = options
	c.Linux.SecurityContext.Capabilities = &criv1.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	c.Mounts = []*criv1.Mount{{HostPath: volume, ContainerPath: "/vol", UidMappings: ids, GidMappings: ids}}
	id := g.start(pod, c)
	if got := g.exec(id, "cat", "/proc/self/uid_map"); strings.Join(strings.Fields(got), " ") != "0 1048576 65536" {
		t.Errorf("uid_map: %q", got)
	}
	if got := g.exec(id, "sh", "-c",
		"id -u; ls -ldn /data/hello /vol | sed 's/  */ /g' | while read a b c d e; do echo $c $d; done"); got != "0\n0 0\n0 0\n" {
		t.Errorf("owners: %q", got)
	}
	g.exec(id, "sh", "-c", "echo x >/vol/file; echo y >/data/new; echo z >/dev/shm/s; mount -t tmpfs x /tmp; cat /etc/resolv.conf /etc/hosts")
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(volume, "file"), &st); err != nil || st.Uid != 0 {
		t.Errorf("a file in the volume belongs to %d on the node, %v", st.Uid, err)
	}
	if err := syscall.Stat("/proc/"+itoa(g.pid(id)), &st); err != nil || st.Uid != first {
		t.Errorf("the process belongs to %d on the node, %v", st.Uid, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Fields(line)[4] == volume {
			t.Errorf("the volume's own directory is mounted over: %s", line)
		}
	}
	g.reopen()
	if ready := g.status(id).State; ready != criv1.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after a restart of the agent: %v", ready)
	}
	config.Metadata.Uid, options.UsernsOptions.Uids = "uid-2", nil
	if _, err := g.r.RunPodSandbox(context.Background(), config, ""); err == nil {
		t.Error("a pod without a mapping runs")
	}
	config = g.podConfig()
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD,
		Uids: ids, Gids: ids}
	if _, err := g.r.RunPodSandbox(context.Background(), config, "runc"); err == nil {
		t.Error("runc runs a pod with a user namespace that it cannot join")
	}
}
