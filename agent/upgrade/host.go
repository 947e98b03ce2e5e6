package upgrade

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the machine: systemd, its package manager, and the coordinator's store.
type Host struct {
	Dir    Dir
	Format string
	// StateDir is the coordinator's; Restore the command that makes its store of a
	// snapshot's file, which is added to it.
	StateDir string
	Restore  []string
	// Healthy is Machine's Well.
	Healthy func(ctx context.Context, version string) error

	main map[string]string // process of a unit that Start started
}

// Stop ends a unit's process.
func (h *Host) Stop(ctx context.Context, unit string) error {
	if _, err := output(ctx, "systemctl", "stop", unit); err != nil {
		return err
	}
	result, err := h.show(ctx, unit, "Result")
	if err == nil && result != "success" {
		err = fmt.Errorf("%s did not end in good order (%s): see journalctl -u %s", unit, result, unit)
	}
	return err
}

// Kill ends a unit's main process without asking it; others of the unit are left alone.
func (h *Host) Kill(ctx context.Context, unit string) error {
	_, _ = output(ctx, "systemctl", "kill", "-s", "KILL", "--kill-who=main", unit) // none may run
	_, err := output(ctx, "systemctl", "stop", unit)
	return err
}

// Start starts a unit, and waits until it is ready.
func (h *Host) Start(ctx context.Context, unit string) error {
	_, err := output(ctx, "systemctl", "start", unit)
	if err != nil {
		return fmt.Errorf("%s does not get ready: %w", unit, err)
	}
	pid, err := h.show(ctx, unit, "MainPID")
	if h.main == nil {
		h.main = map[string]string{}
	}
	h.main[unit] = pid
	return err
}

// Steady compares a unit's process with the one that Start saw.
func (h *Host) Steady(ctx context.Context, unit string) error {
	pid, err := h.show(ctx, unit, "MainPID")
	if err == nil && pid != h.main[unit] {
		err = fmt.Errorf("%s has ended after its start: see journalctl -u %s", unit, unit)
	}
	return err
}

func (h *Host) show(ctx context.Context, unit, property string) (string, error) {
	out, err := output(ctx, "systemctl", "show", "--value", "-p", property, unit)
	return strings.TrimSpace(out), err
}

// Install replaces the package, and has its files on the disk. Another package manager
// that is at work is waited for.
func (h *Host) Install(ctx context.Context, file string) error {
	for end := time.Now().Add(lockPatience); ; {
		err := install(ctx, h.Format, file)
		if err == nil {
			return errors.Join(syncDisk("/usr/bin"), syncDisk("/opt/cni/bin"))
		}
		if !strings.Contains(err.Error(), "lock") || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(time.Second): // nobody tells that the lock is free
		}
	}
}

// lockPatience is how long another package manager is waited for.
const lockPatience = 2 * time.Minute

// syncDisk writes what was written to a directory's file system to its disk. dpkg does so
// by itself, rpm does not.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// Well asks whether the node is.
func (h *Host) Well(ctx context.Context, version string) error { return h.Healthy(ctx, version) }

// database is the embedded store's, below the coordinator's directory. Of a coordinator
// that was stopped in good order it holds all that was acknowledged.
const database = "etcd/member/snap/db"

func (h *Host) copied() string { return h.Dir.Path("store.db") }

// KeepStore copies the database in a snapshot's form: its SHA-256 is behind it. The
// directory is another user's: what it names outside itself is not followed.
func (h *Host) KeepStore(context.Context) error {
	root, err := os.OpenRoot(h.StateDir)
	if err != nil {
		return fmt.Errorf("copy the store: %w", err)
	}
	defer root.Close()
	in, err := root.Open(database)
	if err != nil {
		return fmt.Errorf("copy the store: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(h.copied(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("copy the store: %w", err)
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	if err == nil {
		_, err = out.Write(sum.Sum(nil))
	}
	if err := errors.Join(err, out.Sync(), out.Close(), SyncDir(filepath.Dir(h.copied()))); err != nil {
		return errors.Join(fmt.Errorf("copy the store: %w", err), os.Remove(h.copied()))
	}
	return nil
}

// OldStore makes the store of the copy. Revisions go on beyond those that the new
// coordinator gave away, as with every snapshot that is restored.
func (h *Host) OldStore(ctx context.Context) error {
	_, err := output(ctx, append(append([]string{}, h.Restore...), h.copied())...)
	return err
}

const unitName, unitFile = "shoal-upgrade.service", "/etc/systemd/system/shoal-upgrade.service"

// unitText: the units wait at a boot until the programs and the store are those that
// stay. It runs the copy of the old programs, which no package replaces.
const unitText = `[Unit]
Description=Shoal upgrade of this machine, or its way back
Documentation=man:shoal-upgrade(8)
Wants=network-online.target
After=local-fs.target network-online.target
Before=` + CoordinatorUnit + ` ` + AgentUnit + `
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart=%s upgrade run
Restart=on-failure
RestartSec=1s
TimeoutStartSec=10min

[Install]
WantedBy=multi-user.target
`

// Begin starts the unit that goes on with the record, now and after a power cut.
func (d Dir) Begin(ctx context.Context) error {
	if err := WriteFile(unitFile, fmt.Appendf(nil, unitText, d.Path("shoal")), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", "--quiet", unitName}} {
		if _, err := output(ctx, append([]string{"systemctl"}, args...)...); err != nil {
			return err
		}
	}
	for _, dir := range []string{filepath.Dir(unitFile), filepath.Dir(unitFile) + "/multi-user.target.wants"} {
		if err := SyncDir(dir); err != nil {
			return err
		}
	}
	_, err := output(ctx, "systemctl", "start", "--no-block", unitName)
	return err
}

// Clear takes the unit away, and what an upgrade that is over needs no more.
func (d Dir) Clear(ctx context.Context) error {
	_, err := output(ctx, "systemctl", "disable", "--quiet", unitName)
	errs := []error{err, os.RemoveAll(unitFile), os.RemoveAll(d.Path("new"))}
	_, err = output(ctx, "systemctl", "daemon-reload")
	return errors.Join(append(errs, err)...)
}

// Boot names the machine's present one.
func Boot() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// Running tells which of the units do.
func Running(ctx context.Context) (units []string) {
	for _, unit := range []string{CoordinatorUnit, AgentUnit} {
		if _, err := output(ctx, "systemctl", "-q", "is-active", unit); err == nil {
			units = append(units, unit)
		}
	}
	return units
}

// SelfTest runs the new programs with the machine's configuration, and returns the
// version that they tell. They change nothing.
func SelfTest(ctx context.Context, root string, units []string, agentConfig, coordinatorConfig string) (string, error) {
	bin := func(name string) string { return filepath.Join(root, "usr/bin", name) }
	version, err := output(ctx, bin("shoal-agent"), "--version")
	if err != nil {
		return "", fmt.Errorf("the new programs do not run: %w", err)
	}
	for unit, args := range map[string][]string{
		AgentUnit:       {bin("shoal-agent"), "check", "--config", agentConfig},
		CoordinatorUnit: {bin("shoal-coordinator"), "check", "--config", coordinatorConfig},
	} {
		for _, u := range units {
			if u != unit {
				continue
			}
			if _, err := output(ctx, args...); err != nil {
				return "", fmt.Errorf("the new programs do not take this machine's configuration: %w", err)
			}
		}
	}
	return strings.TrimSpace(version), nil
}
