package chaos

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestDamagedFiles walks all that a cluster of one machine keeps on its disk and in its
// run directory, and damages one path after the other, while the daemon runs that the path
// belongs to; then it kills the daemon and starts it again. Containers go on with the same
// processes, and the daemon works again by itself, unless refusals say otherwise: then it
// ends with a line that names the file and what to do. What is not listed must be mended,
// so that a file which is added later is covered as well.
//
// Each sort of path has two of the six kinds of damage, so that it takes minutes. DAMAGE, a
// regular expression, chooses paths; DAMAGES kinds of damage, "." all of them.
func TestDamagedFiles(t *testing.T) {
	w := newWalk(t)
	only := regexp.MustCompile(os.Getenv("DAMAGE"))
	all := os.Getenv("DAMAGES")
	kinds := regexp.MustCompile(all)
	done := map[string]bool{}
	for again := true; again; { // a daemon that was started anew may have made further files
		again = false
		for _, rel := range w.tree() {
			class := classOf(rel)
			if done[class] || !only.MatchString(rel) {
				continue
			}
			done[class], again = true, true
			for i, d := range damages {
				turn := (i+len(done))%3 == 0
				if all != "" && kinds.MatchString(d.name) || all == "" && turn {
					w.damage(rel, class, d)
				}
			}
		}
	}
	if len(done) < 40 && os.Getenv("DAMAGE") == "" {
		t.Errorf("only %d sorts of paths were seen", len(done))
	}
}

// refusal is what a daemon says that cannot go on without a path.
type refusal struct{ path, damage, says *regexp.Regexp }

func refuses(path, damage, says string) refusal {
	whole := func(s string) *regexp.Regexp { return regexp.MustCompile("^(" + s + ")$") }
	return refusal{path: whole(path), damage: whole(damage), says: regexp.MustCompile(says)}
}

// refusals are of paths that nothing can make again, and of directories in whose place
// something else is.
var refusals = []refusal{
	refuses("coordinator/etcd/.*", ".*", "`shoal snapshot restore`"),
	refuses(`coordinator/pki/((front-proxy-)?ca\.(crt|key)|encryption\.yaml|gossip\.key|sa\.(key|pub)|sealing\.key)`, ".*",
		"put (it|both|the file) back|is a directory"),
	refuses(`coordinator(/pki|/etcd|/gossip-issued|/audit|/audit/audit\.log|/pki/\.replacing\.lock|/lock)?`, "replaced",
		"is a directory|not a directory"),
	refuses(`coordinator(/pki|/etcd)?`, "deleted", "."), // all of it: another cluster begins
	refuses(`agent(/kubeconfig)?`, ".*", "kubeconfig"),
	refuses(`(agent|coordinator)\.yaml`, ".*", `(agent|coordinator)\.yaml`),
	refuses(`agent/(checkpoint|cni(/state.*)?|lock|sandboxes|containers(/X)?|local-volumes.*)|(kubelet|run)(/.*)?`, "replaced",
		"not a directory|is a directory|exists"),
	// What is cut between two lines is a configuration, too, and may be of a node beside this one.
	refuses(`(agent|coordinator)\.yaml`, "half", "."),
	refuses("run/containers/exits", "immutable", "without telling its exit code"),
	refuses(".*", "immutable", "operation not permitted"),
}

// ends are the paths whose loss ends containers, whose pods start anew: what is known of them.
var ends = regexp.MustCompile(`^(agent|agent/(containers|sandboxes)(/X)?(\.json)?|run|run/.*)$`)

// skipped are paths that are no state of a daemon, or that are others' data.
var skipped = regexp.MustCompile(`^(images|kubectl-cache|log|pod-logs|container-logs)(/|$)` +
	`|^(shoal\.pid|up\.yaml|kubeconfig|manifests)(/|$)` +
	`|^agent/image/snapshots/snapshots/[0-9]+/(fs|work)/` + // layers and what containers write
	`|^agent/image\.damaged|\.damaged(/|$)` +
	`|^agent/containers/[^/]+/(upper|work)/` +
	`|^agent/local-volumes/(volumes|snapshots)/[^/]+/(data|mount)/` +
	`|/volumes/kubernetes.io~[^/]+/[^/]+/` + // of pods
	`|\.sock$`)

var variable = regexp.MustCompile(`[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16}-[0-9a-f]{16}|[0-9]{8}T[0-9]{6}Z`)
var number = regexp.MustCompile(`/[0-9]+(/|$)`)

// classOf is the same for paths that are of one sort.
func classOf(rel string) string {
	return number.ReplaceAllString(variable.ReplaceAllString(rel, "X"), "/N$1")
}

// damage is one thing that happens to a path.
type damage struct {
	name string
	file func(path string) error
	dir  func(path string) error // nil: not done to directories
}

var damages = []damage{
	{"empty", func(p string) error { return os.Truncate(p, 0) }, nil},
	{"half", func(p string) error {
		info, err := os.Stat(p)
		if err != nil {
			return err
		}
		return os.Truncate(p, info.Size()/2)
	}, nil},
	{"flipped", flip, nil},
	{"replaced", func(p string) error {
		return errors.Join(os.RemoveAll(p), os.MkdirAll(filepath.Join(p, "in-the-way"), 0o700))
	}, func(p string) error {
		return errors.Join(removeAll(p), os.WriteFile(p, []byte("in the way\n"), 0o600))
	}},
	{"immutable", immutable(true), immutable(true)},
	{"deleted", os.Remove, removeAll},
}

// flip overwrites 64 bytes in the middle.
func flip(p string) error {
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	noise := make([]byte, min(64, info.Size()))
	_, _ = rand.Read(noise)
	_, err = f.WriteAt(noise, (info.Size()-int64(len(noise)))/2)
	return err
}

func immutable(on bool) func(string) error {
	return func(p string) error {
		f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			return err
		}
		flags &^= unix.STATX_ATTR_IMMUTABLE
		if on {
			flags |= unix.STATX_ATTR_IMMUTABLE // has the value of FS_IMMUTABLE_FL
		}
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
}

// removeAll deletes a tree but for what is mounted in it.
func removeAll(dir string) error {
	return exec.Command("rm", "-rf", "--one-file-system", dir).Run()
}

// walk is a cluster and its daemons, which run as children of the test.
type walk struct {
	t      *testing.T
	c      *harness.Cluster
	daemon map[string]*child
	before []string // processes of containers
	saved  string
	probes int
	// patience is how long a pod may take.
	patience time.Duration
}

const damagedPods = `
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {word: "swordfish"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: b}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: all}
spec: {selector: {app: all}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: all}
spec: {podSelector: {}, ingress: [{}]}
---
apiVersion: v1
kind: Pod
metadata: {name: all, labels: {app: all}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "99999"]
    volumeMounts:
    - {name: secret, mountPath: /secret}
    - {name: settings, mountPath: /settings}
    - {name: data, mountPath: /data}
    - {name: empty, mountPath: /empty}
  volumes:
  - {name: secret, secret: {secretName: secret}}
  - {name: settings, configMap: {name: settings}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: empty, emptyDir: {}}
`

const damagedStatic = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec:
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "99999"]}]
`

// probePod shows that the cluster works: its pod starts, reads a Secret, ends.
const probePod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [grep, swordfish, /secret/word]
    volumeMounts: [{name: secret, mountPath: /secret}]
  volumes: [{name: secret, secret: {secretName: secret}}]
`

func newWalk(t *testing.T) *walk {
	c, err := harness.Prepare("damage")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	w := &walk{t: t, c: c, daemon: map[string]*child{}, saved: t.TempDir(), patience: 20 * time.Second}
	manifests := filepath.Join(c.Dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(manifests, "static.yaml"), []byte(damagedStatic), 0o644); err != nil {
		t.Fatal(err)
	}
	appendTo(t, filepath.Join(c.Dir, "agent.yaml"), "staticPodPath: "+manifests+"\n")
	supervisor, err := c.SupervisorPid()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"coordinator", "agent"} {
		pid, err := c.Pid(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.daemon[name] = &child{w: w, name: name, log: filepath.Join(t.TempDir(), name+".log")}
	}
	t.Cleanup(func() {
		for _, d := range w.daemon {
			d.kill()
		}
		_ = syscall.Kill(supervisor, syscall.SIGCONT)
	})
	for _, name := range []string{"coordinator", "agent"} {
		if err := w.daemon[name].start(); err != nil {
			t.Fatal(err)
		}
	}
	c.MustWith(t, damagedPods, "apply", "-f", "-")
	for _, pod := range []string{"all", "static-node1"} {
		harness.Eventually(t, "pod "+pod, func() (bool, string) {
			out, err := c.Kubectl("", "get", "pod", pod, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			return out == "True", fmt.Sprint(out, err)
		})
	}
	if out, err := c.Command("shoal", "snapshot", "save", "--data-dir", c.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := w.probe(); err != nil {
		t.Fatal(err)
	}
	w.before = w.processes()
	if len(w.before) < 2 {
		t.Fatalf("containers' processes: %v", w.before)
	}
	return w
}

func appendTo(t *testing.T, file, text string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(data, text...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tree are the paths below the cluster's directory, files before the directories that
// they are in.
func (w *walk) tree() (paths []string) {
	top, err := os.Stat(w.c.Dir)
	if err != nil {
		w.t.Fatal(err)
	}
	dev := top.Sys().(*syscall.Stat_t).Dev
	_ = filepath.WalkDir(w.c.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went meanwhile
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		rel, _ := filepath.Rel(w.c.Dir, p)
		switch {
		case rel == ".":
			return nil
		case info.Sys().(*syscall.Stat_t).Dev != dev:
			return fs.SkipDir // mounted
		case skipped.MatchString(rel):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.IsDir() && !d.Type().IsRegular():
			return nil
		}
		paths = append(paths, rel)
		return nil
	})
	slices.SortStableFunc(paths, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return paths
}

// processes are those of the cluster's containers, with the moment when each began.
func (w *walk) processes() (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		groups, err := os.ReadFile(p + "/cgroup")
		if err != nil || !bytes.Contains(groups, []byte("/"+w.c.Name+"/kubepods")) {
			continue
		}
		stat, err := os.ReadFile(p + "/stat")
		if err != nil {
			continue
		}
		if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 19 {
			found = append(found, filepath.Base(p)+" began "+f[19])
		}
	}
	return found
}

// probe has a pod start that needs all there is.
func (w *walk) probe() error {
	w.probes++
	name := "probe-" + strconv.Itoa(w.probes)
	if err := w.eventually(20*time.Second, func() error {
		_, err := w.c.Kubectl(fmt.Sprintf(probePod, name), "apply", "-f", "-")
		return err
	}); err != nil {
		return err
	}
	defer func() { _, _ = w.c.Kubectl("", "delete", "pod", name, "--force", "--wait=false") }()
	return w.eventually(w.patience, func() error {
		out, err := w.c.Kubectl("", "get", "pod", name, "-o", "jsonpath={.status.phase} {.status.containerStatuses[0].state}")
		if err == nil && !strings.HasPrefix(out, "Succeeded") {
			events, _ := w.c.Kubectl("", "get", "events", "--field-selector", "type=Warning,involvedObject.name="+name,
				"-o", "jsonpath={.items[*].message}")
			err = errors.New(out + " " + events)
		}
		return err
	})
}

func (w *walk) eventually(limit time.Duration, f func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// damage does one thing to one path.
func (w *walk) damage(rel, class string, d damage) {
	full := filepath.Join(w.c.Dir, rel)
	info, err := os.Lstat(full)
	if err != nil || (info.IsDir() && d.dir == nil) {
		return
	}
	began := time.Now()
	name := "agent"
	if strings.HasPrefix(rel, "coordinator") {
		name = "coordinator"
	}
	daemon := w.daemon[name]
	whole := full
	if rel == "coordinator" || strings.HasPrefix(rel, "coordinator/") {
		whole = filepath.Join(w.c.Dir, "coordinator") // its parts belong together
	}
	w.save(whole)
	marks := w.marks()
	do := d.file
	if info.IsDir() {
		do = d.dir
	}
	if err := do(full); err != nil {
		w.t.Logf("%-10s %s: not done: %v", d.name, class, err)
		if d.name == "immutable" {
			return
		}
	}
	time.Sleep(200 * time.Millisecond) // it runs on with the damage
	daemon.kill()
	err = daemon.start()
	if d.name == "immutable" {
		w.patience = 8 * time.Second
		defer func() { w.patience = 20 * time.Second }()
	}
	if err == nil {
		err = w.probe()
	}
	var said []string
	for _, c := range w.daemon {
		said = append(said, c.since(marks[c.name])...)
	}
	verdict := "works"
	if err != nil {
		verdict = err.Error()
		if !w.expected(class, d.name, verdict+strings.Join(said, "\n")) {
			w.t.Errorf("%s %s: %s", class, d.name, verdict)
		}
	}
	w.t.Logf("%-10s %s: %.200s (%.1fs)", d.name, class, verdict, time.Since(began).Seconds())
	for _, l := range said {
		// Go ends a process that reads beyond the end of a file which it has mapped, as etcd its
		// database: that is then one that was killed.
		mapped := strings.HasSuffix(class, "/snap/db") && l == "fatal error: fault"
		if strings.HasPrefix(l, "panic:") || strings.Contains(l, "nil pointer") ||
			strings.HasPrefix(l, "fatal error:") && !mapped {
			w.t.Errorf("%s %s: %s", class, d.name, l)
		}
	}
	if d.name == "immutable" {
		if err := immutable(false)(full); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.t.Errorf("%v", err)
		}
	}
	now := w.processes()
	for _, p := range w.before {
		if !slices.Contains(now, p) && !ends.MatchString(class) {
			w.t.Errorf("%s %s: a container's process is gone: %s", class, d.name, p)
		}
	}
	w.open(class, d.name)
	defer func() { w.before = w.processes() }()
	if err != nil {
		daemon.kill()
		w.restore(whole)
		w.patience = 20 * time.Second
		if err := daemon.start(); err != nil {
			w.t.Fatalf("not even with the file of before: %v", err)
		}
		if err := w.probe(); err != nil {
			w.t.Fatalf("not even with the file of before: %v", err)
		}
	}
}

// expected tells whether a daemon may refuse to go on, and says so as it should.
func (w *walk) expected(class, damage, said string) bool {
	return slices.ContainsFunc(refusals, func(r refusal) bool {
		return r.path.MatchString(class) && r.damage.MatchString(damage) && r.says.MatchString(said)
	})
}

// open looks for keys that others can read.
func (w *walk) open(class, damage string) {
	for _, rel := range w.tree() {
		info, err := os.Lstat(filepath.Join(w.c.Dir, rel))
		secret := strings.HasSuffix(rel, ".key") || strings.HasPrefix(rel, "agent/checkpoint/") ||
			strings.HasPrefix(rel, "coordinator/etcd/") || strings.HasSuffix(rel, "encryption.yaml")
		if err == nil && secret && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 && !w.closed(rel) {
			w.t.Errorf("%s %s: others can read %s: %v", class, damage, rel, info.Mode())
		}
	}
}

// closed tells whether a directory on the way to a path lets nobody else through.
func (w *walk) closed(rel string) bool {
	for dir := filepath.Dir(rel); dir != "."; dir = filepath.Dir(dir) {
		if info, err := os.Stat(filepath.Join(w.c.Dir, dir)); err == nil && info.Mode().Perm()&0o011 == 0 {
			return true
		}
	}
	return false
}

func (w *walk) save(full string) {
	copied := filepath.Join(w.saved, "x")
	if err := os.RemoveAll(copied); err != nil {
		w.t.Fatal(err)
	}
	// Namespaces of sandboxes are mounts, which stay.
	const keep = `mkdir "$2" && tar -C "$(dirname "$1")" --one-file-system --sparse --exclude='ns/*' -cf - "$(basename "$1")" |
		tar -C "$2" -xpf -`
	out, err := exec.Command("sh", "-c", keep, "sh", full, copied).CombinedOutput()
	if err != nil {
		w.t.Errorf("save %s: %v %s", full, err, out)
	}
}

func (w *walk) restore(full string) {
	_ = removeAll(full)
	_ = os.MkdirAll(filepath.Dir(full), 0o700)
	from := filepath.Join(w.saved, "x", filepath.Base(full))
	out, err := exec.Command("cp", "-aT", "--sparse=always", from, full).CombinedOutput()
	if err != nil {
		w.t.Errorf("restore %s: %v %s", full, err, out)
	}
}

func (w *walk) marks() map[string]int64 {
	m := map[string]int64{}
	for name, c := range w.daemon {
		if info, err := os.Stat(c.log); err == nil {
			m[name] = info.Size()
		}
	}
	return m
}

// child is a daemon that the test starts in its supervisor's place, without pauses.
type child struct {
	w    *walk
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// start returns when the daemon is ready, or has ended.
func (d *child) start() error {
	socket := filepath.Join(d.w.c.Dir, "log", "test-"+d.name+".sock")
	_ = os.Remove(socket)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	logs, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer logs.Close()
	mark, _ := logs.Seek(0, 2)
	d.cmd = d.w.c.Command("shoal-"+d.name, "--config", filepath.Join(d.w.c.Dir, d.name+".yaml"))
	d.cmd.Stdout, d.cmd.Stderr = logs, logs
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	d.done = make(chan struct{})
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	buf := make([]byte, 4096)
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); {
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := conn.Read(buf); err == nil && bytes.Contains(buf[:n], []byte("READY=1")) {
			return nil
		}
		if err := d.ended(); err != nil {
			lines := d.since(mark)
			return fmt.Errorf("%w: %s", err, lines[max(0, len(lines)-1):])
		}
	}
	lines := d.since(mark)
	return fmt.Errorf("not ready within 40 s: %s", lines[max(0, len(lines)-3):])
}

// ended is nil while it runs.
func (d *child) ended() error {
	select {
	case <-d.done:
		return fmt.Errorf("it ended (%v)", d.err)
	default:
		return nil
	}
}

func (d *child) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.done
}

// since are the lines of the log from an offset on.
func (d *child) since(mark int64) []string {
	data, err := os.ReadFile(d.log)
	if err != nil || int64(len(data)) < mark {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data[mark:])), "\n")
}
