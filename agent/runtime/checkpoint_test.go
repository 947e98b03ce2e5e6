package runtime

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/oci"
)

// A runtime program that is runc but for "checkpoint": it writes what CRIU would, and does
// what the file "does" beside it says.
const fakeCheckpoint = `#!/bin/sh
dir=$(dirname "$0")
case " $* " in
*" checkpoint --help "*) cat "$dir/help"; exit ;;
*" checkpoint "*) ;;
*) exec RUNC "$@" ;;
esac
while [ $# -gt 0 ]; do
	case $1 in --image-path) images=$2 ;; --work-path) work=$2 ;; --leave-running) leave=yes ;; esac
	last=$1
	shift
done
echo "$last $leave" >>"$dir/asked"
echo "(00.1) some line" >"$work/dump.log"
echo stats >"$work/stats-dump"
echo pages >"$images/pages-1.img"
echo inventory >"$images/inventory.img"
case $(cat "$dir/does") in
fail) echo "(00.2) Error (criu/sk-inet.c:191): inet: Connected TCP socket" >>"$work/dump.log"; exit 1 ;;
hang) while [ "$(cat "$dir/does")" = hang ]; do sleep 0.02; done ;;
esac
exit 0
`

// checkpointRig is a rig whose handler "fake" is that program, with a CRIU of the version.
func checkpointRig(t *testing.T, criu string) (g *rig, bin, dir string) {
	t.Helper()
	g = newRig(t)
	real, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal("runc is not installed: run `make setup`")
	}
	bin, dir = filepath.Join(g.dir, "bin"), filepath.Join(g.dir, "checkpoints")
	for _, d := range []string{bin, dir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"runc": strings.ReplaceAll(fakeCheckpoint, "RUNC", real), "help": "  --leave-running  leave it running\n",
		"does": "well", "criu": "#!/bin/sh\necho 'Version: " + criu + "'\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	g.cfg.Runtimes = map[string]oci.Runtime{"fake": {Path: filepath.Join(bin, "runc")}}
	g.reopen()
	g.importImage()
	return g, bin, dir
}

func does(t *testing.T, bin, what string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(bin, "does"), []byte(what), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (g *rig) checkpoint(ctx context.Context, id, location string) error {
	return g.r.CheckpointContainer(ctx, &criv1.CheckpointContainerRequest{ContainerId: id, Location: location})
}

// holds waits until a directory of checkpoints has the archives and nothing else.
func holds(t *testing.T, dir string, but ...string) {
	t.Helper()
	eventually(t, "only the archives are in the directory", func() bool {
		all, err := os.ReadDir(dir)
		return err == nil && len(all) == len(but)
	})
}

// unpack reads an archive.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(data)
	}
}

func TestCheckpoint(t *testing.T) {
	g, bin, dir := checkpointRig(t, "3.17.1")
	id := g.start(g.runIn("fake", g.podConfig()), shell("main", "echo new >/tmp/written; rm hello; sleep 9999"))
	eventually(t, "the container has written", func() bool { return g.exec(id, "ls", "/tmp", "/data") == "/data:\n\n/tmp:\nwritten\n" })
	to := filepath.Join(dir, "c.tar")
	if err := g.checkpoint(t.Context(), id, to); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, to)
	if info, err := os.Stat(to); err != nil || info.Mode() != 0o600 {
		t.Errorf("the archive: %v %v", info, err)
	}
	asked, err := os.ReadFile(filepath.Join(bin, "asked"))
	if err != nil || string(asked) != id+" yes\n" {
		t.Errorf("the runtime was asked for %q %v", asked, err)
	}
	has := unpack(t, to)
	for name, want := range map[string]string{
		"checkpoint/inventory.img": "inventory", "checkpoint/pages-1.img": "pages", "stats-dump": "stats",
		"dump.log": "some line", "rootfs-diff.tar": "written", "deleted.files": "/data/hello",
		"config.dump": `"rootfsImage": "` + testImage, "status": `"Pid"`, "spec.dump": "io.kubernetes.cri.sandbox-name",
	} {
		if !strings.Contains(has[name], want) {
			t.Errorf("%s of the archive is without %q", name, want)
		}
	}
	var told criv1.ContainerStatus
	if err := json.Unmarshal([]byte(has["status.dump"]), &told); err != nil || told.Id != id || told.CreatedAt == 0 {
		t.Errorf("status.dump: %v %v", has["status.dump"], err)
	}
	if err := g.checkpoint(t.Context(), id, to); err == nil || !strings.Contains(err.Error(), "file exists") {
		t.Errorf("a second archive of that name: %v", err)
	}
	holds(t, dir, to)
}

// What cannot be done is told with its reason, and nothing is left of it.
func TestCheckpointFails(t *testing.T) {
	g, bin, dir := checkpointRig(t, "3.17.1")
	pod := g.runIn("fake", g.podConfig())
	id := g.start(pod, shell("main", "sleep 9999"))
	to := filepath.Join(dir, "c.tar")
	refused := func(code codes.Code, want string, err error) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), want) {
			t.Errorf("error %v, want %v and %q", err, code, want)
		}
		holds(t, dir)
	}
	does(t, bin, "fail")
	refused(codes.Unknown, "runc checkpoint: exit status 1: (criu/sk-inet.c:191): inet: Connected TCP socket",
		g.checkpoint(t.Context(), id, to))
	does(t, bin, "well")
	refused(codes.InvalidArgument, "absolute path", g.checkpoint(t.Context(), id, "c.tar"))
	refused(codes.NotFound, "none", g.checkpoint(t.Context(), "none", to))
	refused(codes.InvalidArgument, "> 0", g.r.CheckpointContainer(t.Context(),
		&criv1.CheckpointContainerRequest{ContainerId: id, Location: to, Timeout: -1}))
	ended := g.start(pod, shell("ended", "true"))
	g.exited(ended)
	refused(codes.FailedPrecondition, "only running containers", g.checkpoint(t.Context(), ended, to))

	g.r.cfg.KeepCheckpoints = func(total uint64) uint64 { return total }
	refused(codes.Unknown, "no room for it", g.checkpoint(t.Context(), id, to))
	g.r.cfg.KeepCheckpoints = nil

	if err := os.WriteFile(filepath.Join(bin, "help"), []byte("unknown command checkpoint\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(codes.Unknown, "checkpoint/restore support not available: runc has no checkpoint",
		g.checkpoint(t.Context(), id, to))
	if err := os.WriteFile(filepath.Join(bin, "criu"), []byte("#!/bin/sh\necho Version: 3.15\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := g.checkpoint(t.Context(), id, to)
	refused(codes.Unknown, "CRIU binary not found or too old (<31600). Failed to checkpoint container "+id, err)
	// The words that upstream's test skips for (test/e2e_node/checkpoint_container.go).
	if want := "rpc error: code = Unknown desc = CRIU binary not found or too old (<31600). Failed to checkpoint " +
		"container"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %q", err)
	}
	asked, err := os.ReadFile(filepath.Join(bin, "asked"))
	if err != nil || strings.Count(string(asked), "\n") != 1 {
		t.Errorf("the runtime was asked for %q: once is enough", asked)
	}
}

// One is made at a time of a container. A caller that goes ends nothing but its own wait:
// CRIU is never ended with the container in its hands.
func TestCheckpointAtOnce(t *testing.T) {
	g, bin, dir := checkpointRig(t, "4.2.1")
	pod := g.runIn("fake", g.podConfig())
	id, other := g.start(pod, shell("main", "sleep 9999")), g.start(pod, shell("other", "sleep 9999"))
	does(t, bin, "hang")
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- g.checkpoint(ctx, id, filepath.Join(dir, "c.tar")) }()
	eventually(t, "the first has begun", func() bool {
		_, err := os.Stat(filepath.Join(bin, "asked"))
		return err == nil
	})
	second := g.checkpoint(t.Context(), id, filepath.Join(dir, "d.tar"))
	if status.Code(second) != codes.FailedPrecondition || !strings.Contains(second.Error(), "another checkpoint") {
		t.Errorf("the second one: %v", second)
	}
	cancel()
	select {
	case err := <-first:
		if status.Code(err) != codes.Canceled {
			t.Errorf("the first one: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the caller waits on")
	}
	if err := g.checkpoint(t.Context(), id, filepath.Join(dir, "d.tar")); err == nil {
		t.Error("another one begins while the runtime still works")
	}
	does(t, bin, "well")
	holds(t, dir)
	eventually(t, "another one is made", func() bool {
		return g.checkpoint(t.Context(), id, filepath.Join(dir, "e.tar")) == nil
	})
	if err := g.checkpoint(t.Context(), other, filepath.Join(dir, "f.tar")); err != nil {
		t.Errorf("of the other container: %v", err)
	}
}

// The real CRIU, where it works with this kernel: the container goes on, and what was
// written down can be run again.
func TestCheckpointByCRIU(t *testing.T) {
	if out, err := exec.Command("criu", "check").CombinedOutput(); err != nil {
		t.Skipf("CRIU does not work here: %v %s", err, out)
	}
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		t.Skip("CRIU has no iptables-restore here, by which it holds the network still")
	}
	g := newRig(t)
	g.cfg.Runtimes = map[string]oci.Runtime{"runc": {Path: "runc"}}
	g.reopen()
	g.importImage()
	dir := filepath.Join(g.dir, "checkpoints")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pod := g.runIn("runc", g.podConfig())
	id := g.start(pod, shell("main", "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.05; done"))
	count := func() string { return g.exec(id, "cat", "/tmp/count") }
	eventually(t, "the container counts", func() bool { return len(count()) > 2 })
	to := filepath.Join(dir, "c.tar")
	if err := g.checkpoint(t.Context(), id, to); err != nil {
		t.Fatal(err)
	}
	before := count()
	eventually(t, "the container goes on", func() bool { return count() != before })
	has := unpack(t, to)
	for _, name := range []string{"checkpoint/inventory.img", "checkpoint/pages-1.img", "spec.dump", "config.dump",
		"stats-dump", "dump.log"} {
		if has[name] == "" {
			t.Errorf("the archive has no %s", name)
		}
	}
	if !strings.Contains(has["rootfs-diff.tar"], "tmp/count") {
		t.Error("the archive has not what the container wrote")
	}
	if err := g.r.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	g.restored(id, to)
}

// restored runs a container that has ended from a checkpoint of it, by the runtime's own
// command, with the root file system of before: it goes on where it was.
func (g *rig) restored(id, archive string) {
	g.t.Helper()
	bundle := g.t.TempDir()
	if out, err := exec.Command("tar", "-xf", archive, "-C", bundle).CombinedOutput(); err != nil {
		g.t.Fatalf("%v %s", err, out)
	}
	if err := os.Rename(filepath.Join(bundle, "spec.dump"), filepath.Join(bundle, "config.json")); err != nil {
		g.t.Fatal(err)
	}
	c, err := g.r.containers.Get(id)
	if err != nil {
		g.t.Fatal(err)
	}
	file := filepath.Join(g.cfg.DataDir, "containers", c.ID, "upper", "tmp", "count")
	before, err := os.ReadFile(file)
	if err != nil {
		g.t.Fatal(err)
	}
	runc := func(args ...string) error { // without pipes, which the container would keep
		state, log := filepath.Join(bundle, "state"), filepath.Join(bundle, "runc.log")
		args = append([]string{"--root", state, "--log", log}, args...)
		return exec.Command("runc", args...).Run()
	}
	defer func() { _ = runc("delete", "--force", c.ID) }()
	if err := runc("restore", "--detach", "--image-path", filepath.Join(bundle, "checkpoint"), "--work-path", bundle,
		"--bundle", bundle, c.ID); err != nil {
		log, _ := os.ReadFile(filepath.Join(bundle, "restore.log"))
		g.t.Fatalf("restore: %v\n%s", err, log[max(0, len(log)-3000):])
	}
	eventually(g.t, "the restored container counts on", func() bool {
		now, err := os.ReadFile(file)
		return err == nil && len(now) > 0 && string(now) != string(before)
	})
}
