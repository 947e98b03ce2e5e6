package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultMount is where the control group file systems are mounted.
const DefaultMount = "/sys/fs/cgroup"

// Mode is the layout of the host's control groups.
type Mode string

// The three layouts of systemd's documentation (CGROUP_DELEGATION).
const (
	V1     Mode = "v1"
	Hybrid Mode = "hybrid"
	V2     Mode = "v2"
)

// v1Controllers are the v1 hierarchies that a container is put into.
var v1Controllers = []string{
	"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio",
	"pids", "hugetlb", "net_cls", "net_prio", "perf_event", "systemd",
}

// Root is a host's set of control group hierarchies.
type Root struct {
	mode    Mode
	mount   string
	v1      map[string]string // controller -> mount point
	order   []string          // keys of v1, in creation order
	unified string            // mount point of cgroup2, "" if none
	units   *units            // nil unless systemd makes the groups
}

// Open finds the host's hierarchies and makes groups by driver, "" being
// Cgroupfs. Systemd needs a host that is all v2.
func Open(driver Driver) (*Root, error) {
	r, err := New("")
	if err != nil || driver != Systemd {
		return r, err
	}
	if r.mode != V2 {
		return nil, fmt.Errorf("cgroup driver systemd: the host's control groups are %s and it needs v2: use cgroupfs", r.mode)
	}
	r.units = &units{}
	return r, nil
}

// Driver tells who makes the groups.
func (r *Root) Driver() Driver {
	if r.units != nil {
		return Systemd
	}
	return Cgroupfs
}

// New finds the hierarchies below mount ("" = DefaultMount).
func New(mount string) (*Root, error) {
	if mount == "" {
		mount = DefaultMount
	}
	if isCgroup2(mount) {
		return &Root{mode: V2, mount: mount, unified: mount}, nil
	}
	r := &Root{mode: V1, mount: mount, v1: map[string]string{}}
	for _, c := range v1Controllers {
		dir := filepath.Join(mount, c)
		if fsType(dir) == unix.CGROUP_SUPER_MAGIC {
			r.v1[c] = dir
			r.order = append(r.order, c)
		}
	}
	if u := filepath.Join(mount, "unified"); isCgroup2(u) {
		r.mode, r.unified = Hybrid, u
	}
	if len(r.v1) == 0 {
		return nil, fmt.Errorf("no control groups are mounted below %s: mount cgroup2 there", mount)
	}
	return r, nil
}

// Mode tells the host's layout.
func (r *Root) Mode() Mode { return r.mode }

// dirs lists the directory of path in every hierarchy.
func (r *Root) dirs(path string) []string {
	out := make([]string, 0, len(r.order)+1)
	for _, c := range r.order {
		out = append(out, filepath.Join(r.v1[c], path))
	}
	if r.unified != "" {
		out = append(out, filepath.Join(r.unified, path))
	}
	return out
}

// dir is the directory that holds controller's files for path, "" if the
// host does not have the controller.
func (r *Root) dir(controller, path string) string {
	if r.mode == V2 {
		return filepath.Join(r.unified, path)
	}
	if m, ok := r.v1[controller]; ok {
		return filepath.Join(m, path)
	}
	if r.unified != "" && hasWord(filepath.Join(r.unified, "cgroup.controllers"), controller) {
		return filepath.Join(r.unified, path)
	}
	return ""
}

// on2 tells whether controller is served by the v2 hierarchy.
func (r *Root) on2(controller string) bool {
	_, v1 := r.v1[controller]
	return r.unified != "" && !v1
}

// main is the hierarchy whose membership stands for all of them.
func (r *Root) main(path string) string {
	for _, c := range []string{"memory", "pids", "cpu"} {
		if d := r.dir(c, path); d != "" {
			return d
		}
	}
	return r.dirs(path)[0]
}

// Controls tells whether the host has the controller.
func (r *Root) Controls(controller string) bool {
	if r.mode == V2 {
		return hasWord(filepath.Join(r.unified, "cgroup.controllers"), controller)
	}
	return r.dir(controller, "/") != ""
}

// Exists tells whether the group is there.
func (r *Root) Exists(path string) bool {
	_, err := os.Stat(r.main(path))
	return err == nil
}

// HasFile tells whether the group has a control file on the v2 hierarchy.
func (r *Root) HasFile(path, file string) bool {
	if r.unified == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(r.unified, path, file))
	return err == nil
}

// Ensure creates the group in every hierarchy and applies res. It may be
// called again at any time.
func (r *Root) Ensure(path string, res Resources) error {
	if r.units != nil {
		if err := r.units.ensure(unitName(path), properties(res)); err != nil {
			return fmt.Errorf("create cgroup %s: %w", path, err)
		}
	}
	for _, c := range r.order {
		if err := r.make1(c, path); err != nil {
			return fmt.Errorf("create cgroup %s: %w", path, err)
		}
	}
	if r.unified != "" {
		if err := r.make2(path); err != nil {
			return fmt.Errorf("create cgroup %s: %w", path, err)
		}
	}
	return r.write(path, res)
}

func (r *Root) make1(controller, path string) error {
	mount := r.v1[controller]
	dir := filepath.Join(mount, path)
	if controller != "cpuset" {
		return os.MkdirAll(dir, 0o755)
	}
	return r.walkDown(mount, path, func(parent, dir string) error {
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := inherit(parent, dir, f); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *Root) make2(path string) error {
	return r.walkDown(r.unified, path, func(parent, _ string) error {
		return enableControllers(parent)
	})
}

// walkDown makes each component of path below mount and calls made for it.
func (r *Root) walkDown(mount, path string, made func(parent, dir string) error) error {
	dir := mount
	for part := range strings.SplitSeq(strings.Trim(filepath.Clean("/"+path), "/"), "/") {
		if part == "" {
			continue
		}
		parent := dir
		dir = filepath.Join(dir, part)
		err := os.Mkdir(dir, 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := made(parent, dir); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers passes all of a v2 group's controllers to its children.
// A controller that cannot be passed on is left out: limits that need it
// fail by themselves with a clear error.
func enableControllers(dir string) error {
	all, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	enabled := strings.Fields(string(on))
	for _, c := range strings.Fields(string(all)) {
		if !contains(enabled, c) {
			_ = write(dir, "cgroup.subtree_control", "+"+c)
		}
	}
	return nil
}

// inherit copies a cpuset file that is still empty from the parent group.
func inherit(parent, dir, file string) error {
	have, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || len(strings.TrimSpace(string(have))) > 0 {
		return err
	}
	from, err := os.ReadFile(filepath.Join(parent, file))
	if err != nil {
		return err
	}
	return write(dir, file, strings.TrimSpace(string(from)))
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

func hasWord(file, word string) bool {
	b, err := os.ReadFile(file)
	return err == nil && contains(strings.Fields(string(b)), word)
}

func isCgroup2(dir string) bool { return fsType(dir) == unix.CGROUP2_SUPER_MAGIC }

func fsType(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

// write sets one control file.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	return nil
}
