package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/shoal-project/shoal/agent/beneath"
)

// down stops the cluster in dataDir: through its supervisor when one runs,
// else by itself. With purge nothing of the cluster stays on disk.
func down(ctx context.Context, dataDir string, purge bool) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root; try sudo")
	}
	o, err := load(dataDir)
	if err != nil {
		return err
	}
	if p := running(o.path("shoal.pid"), "shoal"); p != nil {
		if err := end(ctx, p, supervisorTimeout); err != nil {
			return err
		}
	}
	// The supervisor has cleaned up already, unless it was killed; cleaning
	// twice is quick and safe.
	if err := endLeftovers(ctx, o); err != nil {
		return err
	}
	if err := cleanup(ctx, o, false); err != nil {
		return err
	}
	if purge { // nothing runs any more: what the one cannot remove the other names
		err := cleanup(ctx, o, true)
		if err := cmp.Or(removeFiles(o), err); err != nil {
			return err
		}
	}
	fmt.Println("The cluster is down.")
	return nil
}

// cleanup has the agent's program end all pods and undo what it made on the
// machine: mounts, namespaces, interfaces, nftables and cgroups.
func cleanup(ctx context.Context, o *options, purge bool) error {
	bin, err := program(agentBin)
	if err != nil {
		return err
	}
	args := []string{"cleanup", "--config", o.path(agentFile)}
	if purge {
		args = append(args, "--purge")
	}
	out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("clean up: %w\n%s", err, out)
	}
	return nil
}

// removeFiles deletes the data directory. What is mounted below it is somebody
// else's: it stays, and with it what another `down --purge` needs to know. A
// directory that is a mount point itself is emptied.
func removeFiles(o *options) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(o.DataDir))
	if err != nil {
		return err
	}
	var below []string
	mounted := false // the directory itself
	for _, m := range mounts {
		if m.Mountpoint == o.DataDir {
			mounted = true
		} else if !slices.Contains(below, m.Mountpoint) {
			below = append(below, m.Mountpoint)
		}
	}
	entries, err := os.ReadDir(o.DataDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if slices.Contains([]string{upFile, agentFile}, e.Name()) && len(below) > 0 {
			continue
		}
		if err := beneath.RemoveAll(o.path(e.Name())); !errors.Is(err, beneath.ErrMounted) {
			errs = append(errs, err)
		}
	}
	if len(below) > 0 {
		slices.Sort(below)
		errs = append(errs, fmt.Errorf("what is mounted at %s stays, all else is removed; unmount it and run "+
			"`shoal down --purge` again", strings.Join(below, ", ")))
	} else if !mounted {
		errs = append(errs, os.Remove(o.DataDir))
	}
	return errors.Join(errs...)
}
