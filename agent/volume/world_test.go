package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/checkpoint"
)

// world is what outlives an agent: the mounts of a kernel that is none, the
// records on the disk, and what the API last said. It kills an agent before any
// effect that the agent has on mounts and records.
type world struct {
	t      *testing.T
	root   string // rootDir, and checkpoint beside it
	claims map[string]*corev1.PersistentVolume
	// silent: the API does not answer.
	silent bool
	boot   int // how often the machine started anew

	mu     sync.Mutex
	mounts map[string]string // by path; "node/NAME" is where a device is staged
	limits map[uint32]int64  // by project, of directories
	// resized are the devices whose file systems were to fill them, or could not.
	resized   []string
	resizeErr error
	// left is how many effects are left to the agent, negative for no end.
	left    int
	effects int
}

func newWorld(t *testing.T) *world {
	return &world{
		t:      t,
		root:   t.TempDir(),
		claims: map[string]*corev1.PersistentVolume{},
		mounts: map[string]string{},
		limits: map[uint32]int64{},
		left:   -1,
	}
}

// killed is the panic of an agent whose time has come.
type killed struct{}

// effect is called before each, with mu held.
func (w *world) effect() {
	if w.left == 0 {
		panic(killed{})
	}
	w.left--
	w.effects++
}

// survive tells whether f came to its end.
func (w *world) survive(f func()) (ok bool) {
	defer func() {
		if r := recover(); r != nil && r != any(killed{}) {
			panic(r)
		}
	}()
	f()
	return true
}

// reboot takes all mounts away, and what was in memory alone.
func (w *world) reboot() {
	w.boot++
	for path, what := range w.mounts {
		if what == "tmpfs" {
			names, err := filepath.Glob(filepath.Join(path, "*"))
			hidden, _ := filepath.Glob(filepath.Join(path, ".*"))
			for _, name := range append(names, hidden...) {
				err = errors.Join(err, os.RemoveAll(name))
			}
			if err != nil {
				w.t.Error(err)
			}
		}
	}
	clear(w.mounts)
}

// String lists the mounts.
func (w *world) String() string {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(w.mounts)) {
		fmt.Fprintf(&b, "%s %s\n", path, w.mounts[path])
	}
	return b.String()
}

// store opens the records as a new agent does.
func (w *world) store() *checkpoint.Store[Volume] {
	w.t.Helper()
	dir, log := filepath.Join(w.root, "checkpoint"), slog.New(slog.DiscardHandler)
	s, err := checkpoint.OpenVolatile[Volume](dir, nil, "damaged", log)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// records lists what is on the disk.
func (w *world) records() string {
	w.t.Helper()
	all, err := w.store().All()
	if err != nil {
		w.t.Fatal(err)
	}
	var lines []string
	for _, v := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s %s\n", v.Pod.UID, v.Volume.Name, v.Driver, v.Path))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// manager is that of a new agent, which has a driver of devices beside the
// others.
func (w *world) manager() *Manager {
	m := &Manager{
		RootDir: filepath.Join(w.root, "kubelet"),
		Objects: objects{
			configMaps: map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"a": "1"}}},
			secrets:    map[string]*corev1.Secret{"s": {Data: map[string][]byte{"k": []byte("v")}}},
		},
		Tokens:  tokens{},
		Claims:  w,
		Quotas:  &projectQuotas{w: w, taken: map[uint32]bool{}},
		Records: mortalRecords{w: w, store: w.store()},
		Facts:   func(*corev1.Pod) Facts { return Facts{} },
		Log:     slog.New(slog.DiscardHandler),
		mounts:  w,
	}
	others := slices.DeleteFunc(m.table(), func(r row) bool { return r.name == csiRow }) // of the same volumes
	m.rows = append(others, row{name: "device", driver: deviceDriver{w: w}, claims: true})
	return m
}

// Volume implements Claims.
func (w *world) Volume(_ context.Context, p *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolume, error) {
	if w.silent {
		return nil, errors.New("the API does not answer")
	}
	return w.KnownVolume(p, v), nil
}

// KnownVolume implements Claims.
func (w *world) KnownVolume(_ *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume {
	return w.claims[v.PersistentVolumeClaim.ClaimName]
}

// Mounted implements mounter.
func (w *world) Mounted(path string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mounts[path] != "", nil
}

// Tmpfs implements mounter.
func (w *world) Tmpfs(path string, o tmpfsOptions) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mounts[path] != "" {
		return nil
	}
	w.effect()
	w.mounts[path] = "tmpfs"
	return os.Chmod(path, o.mode)
}

// Bind implements mounter.
func (w *world) Bind(root, sub, target string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.effect()
	w.mounts[target] = "bind of " + filepath.Join(root, sub)
	return os.MkdirAll(target, 0o750)
}

// Mount implements mounter.
func (w *world) Mount(_ context.Context, fstype, source, target string, options []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mounts[target] != "" {
		return nil
	}
	w.effect()
	w.mounts[target] = fmt.Sprintf("%s %s %v", fstype, source, options)
	if !slices.Contains(options, "bind") {
		return nil
	}
	if err := os.Remove(target); err != nil {
		return err
	}
	return os.Symlink(source, target)
}

// Format implements mounter.
func (w *world) Format(ctx context.Context, fstype, device, target string, options []string) error {
	return w.Mount(ctx, fstype, device, target, options)
}

// Resize implements mounter.
func (w *world) Resize(_ context.Context, device, target string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mounts[target] == "" {
		return fmt.Errorf("nothing is mounted at %s", target)
	}
	w.effect()
	w.resized = append(w.resized, device)
	return w.resizeErr
}

// Unmount implements mounter. What was seen there is the server's.
func (w *world) Unmount(_ context.Context, target string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mounts[target] == "" {
		return nil
	}
	w.effect()
	delete(w.mounts, target)
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	return os.Mkdir(target, 0o750)
}

// UnmountUnder implements mounter.
func (w *world) UnmountUnder(dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(w.mounts))) {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			w.effect()
			delete(w.mounts, path)
		}
	}
	return nil
}

// mortalRecords is a store that its agent may not live to write to.
type mortalRecords struct {
	w     *world
	store *checkpoint.Store[Volume]
}

func (r mortalRecords) All() (map[string]*Volume, error) { return r.store.All() }

func (r mortalRecords) Put(key string, v *Volume) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.effect()
	return r.store.Put(key, v)
}

func (r mortalRecords) Delete(key string) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.effect()
	return r.store.Delete(key)
}

// deviceDriver is one that stages: a device is attached to the node once, and
// mounted for each pod.
type deviceDriver struct{ w *world }

func (deviceDriver) Supports(s Source) bool {
	return s.Persistent != nil && s.Persistent.Spec.CSI != nil
}
func (deviceDriver) Follows(Source) bool                 { return false }
func (deviceDriver) Path(podDir string, s Source) string { return ownDir(podDir, "device", s) }

func (deviceDriver) StagedAt(v *Volume) string { return staged(v) }

func (d deviceDriver) Stage(_ context.Context, v *Volume) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.effect()
	d.w.mounts[staged(v)] = "device"
	return nil
}

func (d deviceDriver) Mount(_ context.Context, _ *corev1.Pod, v *Volume) (time.Time, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.w.mounts[staged(v)] == "" {
		return time.Time{}, fmt.Errorf("%s is mounted before it is staged", v.Persistent.Name)
	}
	d.w.effect()
	d.w.mounts[v.Path] = staged(v)
	return time.Time{}, os.MkdirAll(v.Path, 0o750)
}

func (d deviceDriver) Unmount(_ context.Context, v *Volume) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.effect()
	delete(d.w.mounts, v.Path)
	if err := os.Remove(v.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d deviceDriver) Unstage(_ context.Context, v *Volume) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for path, what := range d.w.mounts {
		if what == staged(v) {
			return fmt.Errorf("%s is unstaged while it is mounted at %s", v.Persistent.Name, path)
		}
	}
	d.w.effect()
	delete(d.w.mounts, staged(v))
	return nil
}

func staged(v *Volume) string {
	if csi := v.Persistent.Spec.CSI; csi != nil {
		return "node/" + csi.VolumeHandle
	}
	return "node/" + v.Persistent.Name
}

// unknown lists mounts and directories of volumes that no record tells of.
func (w *world) unknown() []string {
	w.t.Helper()
	all, err := w.store().All()
	if err != nil {
		w.t.Fatal(err)
	}
	dirs, err := filepath.Glob(filepath.Join(w.root, "kubelet/pods/*/volumes/*/*"))
	if err != nil {
		w.t.Fatal(err)
	}
	var found []string
	for _, path := range append(dirs, slices.Collect(maps.Keys(w.mounts))...) {
		known := func(v *Volume) bool {
			parts := filepath.Join(w.root, "kubelet/pods", string(v.Pod.UID), "volume-subpaths", v.Volume.Name)
			return v.Path == path || v.Persistent != nil && path == staged(v) || strings.HasPrefix(path, parts+"/")
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(all)), known) {
			found = append(found, path)
		}
	}
	return found
}

// fullDisk is a store without space.
type fullDisk struct{ Records }

func (fullDisk) Put(string, *Volume) error { return syscall.ENOSPC }
