package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/shoal-project/shoal/agent/process"
)

// A file system whose server is away answers no call, and a process that asks it
// cannot be killed. So a program mounts and unmounts it, which the agent can leave
// behind, and where it is mounted the kernel is asked and not the file system.
const (
	// mountTimeout is that of a mount; mount.nfs gives up by itself after two minutes.
	mountTimeout = 150 * time.Second
	// unmountTimeout is how long what was written may take to reach the server.
	unmountTimeout = 30 * time.Second
	// programOutput bounds what is told of a program's output, in bytes.
	programOutput = 2048
)

// Mount implements mounter, by mount(8), which knows the file systems' own programs.
func (kernel) Mount(ctx context.Context, fstype, source, target string, options []string) error {
	at, err := mountsAt(target)
	if err != nil || at > 0 {
		return err
	}
	args := []string{"-t", fstype}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	args = append(args, "--", source, target)
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	out, err := program(ctx, "mount", args...)
	if err == nil {
		return nil
	}
	hint := ""
	if _, missing := exec.LookPath("mount." + fstype); missing != nil {
		hint = fmt.Sprintf("The program mount.%s is not installed on this node.\n", fstype)
	}
	return fmt.Errorf("mount failed: %w\nMounting command: mount\nMounting arguments: %s\nOutput: %s\n%s",
		err, strings.Join(args, " "), out, hint)
}

// Format implements mounter, by the programs that upstream uses too: blkid tells
// whether there is a file system, mkfs makes one, fsck mends one. It is waited for to
// its end, whatever ctx says: two of them at one device would destroy what is on it.
func (kernel) Format(_ context.Context, fstype, device, target string, options []string) error {
	at, err := mountsAt(target)
	if err != nil || at > 0 {
		return err
	}
	programs := mount.SafeFormatAndMount{Interface: mount.NewWithoutSystemd(""), Exec: utilexec.New()}
	return programs.FormatAndMount(device, target, fstype, options)
}

// Resize implements mounter, by the programs that upstream uses too (resize2fs,
// xfs_growfs, btrfs), waited for to their end as those of Format.
func (kernel) Resize(_ context.Context, device, target string) error {
	_, err := mount.NewResizeFs(utilexec.New()).Resize(device, target)
	return err
}

// Unmount implements mounter. A server that does not answer in time has the mount
// taken away without what was not written yet.
func (kernel) Unmount(ctx context.Context, target string) error {
	at, err := mountsAt(target)
	for ; err == nil && at > 0; at-- {
		err = unmountByProgram(ctx, target)
	}
	return err
}

func unmountByProgram(ctx context.Context, target string) error {
	patient, cancel := context.WithTimeout(ctx, unmountTimeout)
	defer cancel()
	out, err := program(patient, "umount", "--no-canonicalize", target)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if unix.Unmount(target, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		return nil
	}
	return fmt.Errorf("unmount failed: %w\nUnmounting arguments: %s\nOutput: %s", err, target, out)
}

// program runs one of the node's programs, and leaves one behind that cannot be
// killed.
func program(ctx context.Context, name string, args ...string) (output string, err error) {
	return programUpTo(ctx, programOutput, name, args...)
}

// programUpTo is program for one whose output is longer.
func programUpTo(ctx context.Context, limit int, name string, args ...string) (output string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	out := process.Output{Limit: limit}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return "", err
	}
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
		return strings.TrimSpace(out.String()), err
	case <-ctx.Done():
	}
	left := time.NewTimer(cmd.WaitDelay)
	defer left.Stop()
	select {
	case <-ended:
	case <-left.C:
		return "", fmt.Errorf("%w, and %s cannot be ended", ctx.Err(), name)
	}
	return strings.TrimSpace(out.String()), ctx.Err()
}

// mountsAt counts the mounts at a path itself. Links in the path above it are
// root's: /var/lib/kubelet may lie on another disk.
func mountsAt(path string) (int, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	at := filepath.Join(parent, filepath.Base(path))
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != at, false })
	return len(mounts), err
}
