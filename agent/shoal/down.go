package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/moby/sys/mountinfo"
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
		if err := end(ctx, p); err != nil {
			return err
		}
	}
	// The supervisor has cleaned up already, unless it was killed; cleaning
	// twice is quick and safe.
	if err := endLeftovers(ctx, o); err != nil {
		return err
	}
	if err := cleanup(ctx, o, purge); err != nil {
		return err
	}
	if purge {
		if err := removeFiles(o); err != nil {
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
	args := []string{"cleanup", "--config", o.path("agent.yaml")}
	if purge {
		args = append(args, "--purge")
	}
	out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("clean up: %w\n%s", err, out)
	}
	return nil
}

// removeFiles deletes the data directory. A mount below it stops the deletion:
// what it shows is not ours to delete.
func removeFiles(o *options) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(o.DataDir))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Mountpoint != o.DataDir {
			return fmt.Errorf("%s is still mounted; unmount it and run `shoal down --purge` again", m.Mountpoint)
		}
	}
	return os.RemoveAll(o.DataDir)
}
