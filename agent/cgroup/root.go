package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"
)

// mountPoint is where the control group file systems are mounted; the library
// looks nowhere else.
const mountPoint = "/sys/fs/cgroup"

// Mode is the layout of the host's control groups.
type Mode string

// The three layouts of systemd's documentation (CGROUP_DELEGATION).
const (
	V1     Mode = "v1"
	Hybrid Mode = "hybrid"
	V2     Mode = "v2"
)

// Root is a host's set of control group hierarchies.
type Root struct {
	mode        Mode
	v1          []cgroup1.Subsystem // the hierarchies of v1, by controller
	unified     string              // mount point of cgroup2, "" if none
	controllers []string            // what cgroup2 controls
	units       *units              // nil unless systemd makes the groups
	expected    atomic.Int64        // until when a move is, in ns since 1970; 0: none is
}

// Open finds the host's hierarchies and makes groups by driver, "" being
// Cgroupfs. Systemd needs a host that is all v2.
func Open(driver Driver) (*Root, error) {
	r, err := find()
	if err != nil || driver != Systemd {
		return r, err
	}
	if r.mode != V2 {
		return nil, fmt.Errorf("cgroup driver systemd: the host's control groups are %s and it needs v2: use cgroupfs",
			r.mode)
	}
	r.units = &units{}
	return r, nil
}

func find() (*Root, error) {
	r := &Root{}
	switch cgroups.Mode() {
	case cgroups.Unified:
		r.mode, r.unified = V2, mountPoint
	case cgroups.Hybrid:
		r.mode, r.unified, r.v1 = Hybrid, filepath.Join(mountPoint, "unified"), hierarchies(mountPoint)
	default:
		r.mode, r.v1 = V1, hierarchies(mountPoint)
	}
	if r.mode != V2 && len(r.v1) == 0 {
		return nil, fmt.Errorf("no control groups are mounted below %s: mount cgroup2 there", mountPoint)
	}
	if r.unified == "" {
		return r, nil
	}
	top, err := r.group2("/")
	if err != nil {
		return nil, err
	}
	if r.controllers, err = top.RootControllers(); err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	return r, nil
}

// Driver tells who makes the groups.
func (r *Root) Driver() Driver {
	if r.units != nil {
		return Systemd
	}
	return Cgroupfs
}

// Mode tells the host's layout.
func (r *Root) Mode() Mode { return r.mode }

// Controls tells whether the host has the controller.
func (r *Root) Controls(controller string) bool {
	return len(r.pick(cgroup1.Name(controller))) > 0 || slices.Contains(r.controllers, controller)
}

// on2 tells whether cgroup2 has the controller.
func (r *Root) on2(controller string) bool {
	on1 := func(s cgroup1.Subsystem) bool { return s.Name() == cgroup1.Name(controller) }
	return slices.Contains(r.controllers, controller) && !slices.ContainsFunc(r.v1, on1)
}

// group1 is a group that exists in at least one of the named hierarchies of
// v1 (all of them without a name), cgroup1.ErrCgroupDeleted if it does not.
func (r *Root) group1(path string, names ...cgroup1.Name) (cgroup1.Cgroup, error) {
	return cgroup1.Load(everywhere(path), cgroup1.WithHierarchy(r.hierarchy(names...)))
}

// group2 is a group of cgroup2, whether it exists or not.
func (r *Root) group2(path string) (*cgroup2.Manager, error) {
	return cgroup2.Load(clean(path), cgroup2.WithMountpoint(r.unified))
}

// clean is the form of a group's path that cgroup2 takes.
func clean(path string) string { return filepath.Join("/", path) }

// dirs lists the directory of a group in every hierarchy.
func (r *Root) dirs(path string) []string {
	var out []string
	for _, s := range r.v1 {
		out = append(out, s.(hierarchy).Path(clean(path)))
	}
	if r.unified != "" {
		out = append(out, filepath.Join(r.unified, path))
	}
	return out
}

// memberships are the directories of a group that tell its processes between
// them: that of the hierarchy which stands for all of v1's, and cgroup2's,
// which an OCI runtime leaves out on some hosts.
func (r *Root) memberships(path string) []string {
	var out []string
	for _, name := range []cgroup1.Name{cgroup1.Memory, cgroup1.Pids, cgroup1.Cpu} {
		if h := r.pick(name); len(h) > 0 && len(out) == 0 {
			out = append(out, h[0].(hierarchy).Path(clean(path)))
		}
	}
	if r.unified != "" {
		out = append(out, filepath.Join(r.unified, path))
	}
	if len(out) == 0 {
		return r.dirs(path)[:1]
	}
	return out
}

// Directories are the directories of a group below which every process of it is listed,
// whether the group exists or not.
func (r *Root) Directories(path string) []string { return r.memberships(path) }

// main is the directory that tells whether a group exists.
func (r *Root) main(path string) string { return r.memberships(path)[0] }

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

// Value is what a file of a v2 group says, in bytes: 0 where there is none, math.MaxInt64 for
// no limit.
func (r *Root) Value(path, file string) int64 {
	if r.unified == "" {
		return 0
	}
	data, err := os.ReadFile(filepath.Join(r.unified, path, file))
	text := strings.TrimSpace(string(data))
	if err != nil || text == noLimit {
		return map[bool]int64{true: math.MaxInt64}[err == nil]
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// List names the groups directly below path.
func (r *Root) List(path string) []string { return children(r.main(path)) }

// Ensure creates the group in every hierarchy and applies res. It may be
// called again at any time.
func (r *Root) Ensure(path string, res Resources) error {
	if r.units != nil {
		if err := r.units.ensure(unitName(path), properties(res)); err != nil {
			return fmt.Errorf("create cgroup %s: %w", path, err)
		}
	}
	if err := errors.Join(r.serves(res), r.ensure1(path, res), r.ensure2(path, res), r.weighIO(path, res)); err != nil {
		return fmt.Errorf("create cgroup %s: %w", path, err)
	}
	return nil
}

func (r *Root) ensure1(path string, res Resources) error {
	_, err := cgroup1.New(everywhere(path), res.spec(), cgroup1.WithHierarchy(r.hierarchy()))
	return err
}

func (r *Root) ensure2(path string, res Resources) error {
	if r.unified == "" {
		return nil
	}
	m, err := r.group2("/")
	if err != nil {
		return err
	}
	if m, err = m.NewChild(clean(path)[1:], nil); err != nil {
		return err
	}
	if err := r.passControllers(m); err != nil {
		return err
	}
	return r.limit2(path, res)
}

// passControllers gives the group all of the host's controllers. One that
// cannot be passed on is left out: limits that need it fail by themselves with
// a clear error. cgroup2 passes all or none, so it is asked for each.
func (r *Root) passControllers(m *cgroup2.Manager) error {
	have, err := m.Controllers()
	if err != nil {
		return err
	}
	for _, c := range r.controllers {
		if !slices.Contains(have, c) {
			_ = m.ToggleControllers([]string{c}, cgroup2.Enable)
		}
	}
	return nil
}

// children names the groups directly below a directory, none if it cannot be read.
func children(dir string) []string {
	names, _ := below(dir)
	return names
}

// below names the groups directly below a directory. The kernel counts them among its links
// (a directory has one of its own and one in that above it), so that most groups, which have
// none, are not listed.
func below(dir string) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Nlink == 2 {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
