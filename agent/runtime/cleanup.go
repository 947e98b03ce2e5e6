package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/quota"
)

// Cleanup kills and removes every container and sandbox, and then all that
// is left of them without a record: processes and groups below CgroupRoot,
// mounts below RunDir and in its part of DataDir, files. Images stay.
func (r *Runtime) Cleanup(ctx context.Context) error {
	var errs []error
	for _, s := range r.sandboxes.List() {
		errs = append(errs, r.RemovePodSandbox(ctx, s.ID))
	}
	for _, c := range r.containers.List() {
		errs = append(errs, r.RemoveContainer(ctx, c.ID))
	}
	if err := errors.Join(errs...); err != nil {
		r.cfg.Log.Warn("some containers could not be removed in the usual way", "err", err)
	}
	return Sweep(r.cgroups, r.cfg)
}

// Sweep removes what a runtime with this configuration left, without its
// records and without opening it; nothing may be using it.
func Sweep(groups *cgroup.Root, cfg Config) error {
	var errs []error
	if strings.Trim(cfg.CgroupRoot, "/") != "" {
		errs = append(errs, groups.Kill(cfg.CgroupRoot), groups.Delete(cfg.CgroupRoot))
	}
	errs = append(errs, unmountBelow(cfg.RunDir))
	for _, dir := range []string{"image", "sandboxes", "containers"} { // what else is in DataDir is not the runtime's
		errs = append(errs, unmountBelow(filepath.Join(cfg.DataDir, dir)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sweep container runtime: %w", err) // never delete through a mount
	}
	layers, err := filepath.Glob(filepath.Join(cfg.DataDir, "containers", "*"))
	errs = append(errs, err)
	for _, dir := range layers { // which may have a limit
		if cfg.Quotas != nil {
			errs = append(errs, cfg.Quotas.Remove(dir, 0))
		} else {
			errs = append(errs, quota.Remove(dir))
		}
	}
	for _, dir := range []string{"sandboxes", "containers"} {
		errs = append(errs, beneath.RemoveAll(filepath.Join(cfg.RunDir, dir)),
			beneath.RemoveAll(filepath.Join(cfg.DataDir, dir)))
	}
	states := map[string]bool{"runc": true, "crun": true}
	for _, rt := range cfg.Runtimes {
		states[filepath.Base(rt.Path)] = true
	}
	for name := range states {
		errs = append(errs, beneath.RemoveAll(filepath.Join(cfg.RunDir, name)))
	}
	return errors.Join(errs...)
}

// sweepSealed ends what runs when all of its records are sealed with a key that is
// gone; one of them is damage, and a matter of endUnknown.
// Nobody could adopt it: its pods would be started a second time beside it, and
// those that are deleted would run for ever.
func sweepSealed(groups *cgroup.Root, cfg Config) error {
	unknown, known := 0, 0
	for _, dir := range []string{"sandboxes", "containers"} {
		n, k, err := checkpoint.Foreign(filepath.Join(cfg.DataDir, dir), cfg.Seal)
		if err != nil {
			return err
		}
		unknown, known = unknown+n, known+k
	}
	if unknown == 0 || known > 0 {
		return nil
	}
	cfg.Log.Error(
		"the records of what runs are sealed with another key: all containers of this node are ended, their pods start anew",
		"records", unknown)
	return Sweep(groups, cfg)
}

// sweepUnknown ends what runs when the records of all of it are gone, as with a data
// directory that was removed or a new disk: for the same reason.
func sweepUnknown(groups *cgroup.Root, cfg Config) error {
	made, err := filepath.Glob(filepath.Join(cfg.RunDir, "sandboxes", "*"))
	if err != nil || len(made) == 0 {
		return err
	}
	known, err := filepath.Glob(filepath.Join(cfg.DataDir, "sandboxes", "*.json"))
	if err != nil || len(known) > 0 {
		return err
	}
	cfg.Log.Error("the records of what runs are gone: all containers of this node are ended, their pods start anew",
		"sandboxes", len(made), "records", filepath.Join(cfg.DataDir, "sandboxes"))
	return Sweep(groups, cfg)
}

// endUnknown ends what runs when its own record is damaged, with what belongs to it:
// for the same reason.
func (r *Runtime) endUnknown(ctx context.Context) error {
	var errs []error
	ended := 0
	for _, c := range r.containers.List() {
		if _, err := r.sandboxes.Get(c.SandboxID); errdefs.IsNotFound(err) {
			ended++
			errs = append(errs, r.RemoveContainer(ctx, c.ID))
		}
	}
	containers, err := r.containers.Unknown()
	errs = append(errs, err)
	for _, id := range containers {
		errs = append(errs, unmountBelow(filepath.Join(r.containerRun(), id)),
			r.containers.RemoveUnknown(id, r.cgroups.Named(r.cfg.CgroupRoot, id)))
	}
	sandboxes, err := r.sandboxes.Unknown()
	errs = append(errs, err)
	for _, id := range sandboxes {
		errs = append(errs, r.sandboxes.RemoveUnknown(ctx, id, r.cgroups.Named(r.cfg.CgroupRoot, id)))
	}
	if ended += len(containers); ended+len(sandboxes) > 0 {
		r.cfg.Log.Warn(
			"containers were ended whose records, or whose sandboxes' records, are gone; their pods start them anew",
			"containers", ended, "sandboxes", len(sandboxes))
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything below dir, the deepest first. Links in the
// path of dir are root's.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	var points []string
	for _, m := range mounts {
		if m.Mountpoint != dir {
			points = append(points, m.Mountpoint)
		}
	}
	slices.Sort(points)
	var errs []error
	for _, p := range slices.Backward(points) {
		errs = append(errs, beneath.Detach(p))
	}
	return errors.Join(errs...)
}
