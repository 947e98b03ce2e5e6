package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// database is the example of docs/examples/postgres on the class of a new cluster, with
// snapshots as docs/snapshots installs them.
var database = subject{
	name:     "database",
	software: slices.Concat(snapshotter, postgres.software),
	run:      runDatabase,
}

// mountVolumes mounts a disk whose files can share blocks where the first node's volumes
// are, if the machine can make one.
func (r *rig) mountVolumes() error {
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		return nil
	}
	disk, dir := filepath.Join(r.work, "volumes"), filepath.Join(r.Dir, "agent", "local-volumes")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 4<<30)); err != nil {
		return err
	}
	for _, args := range [][]string{{"mkfs.xfs", "-q", "-m", "reflink=1", disk}, {"mount", "-o", "loop", disk, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	r.volumes = dir
	return nil
}

// unmountVolumes waits for the kernel, which lets go of files a moment after the last
// container's end.
func (r *rig) unmountVolumes() error {
	_, err := r.until(20*time.Second, func() (string, error) {
		out, err := exec.Command("umount", r.volumes).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return "", err
	})
	return err
}

// sql asks a server of the example, "postgres" or "postgres-restored".
func (r *rig) sql(server, query string) (string, error) {
	out, err := r.Kubectl("", "-n", "database", "exec", server+"-0", "--", "psql", "-h", "127.0.0.1", "-U", "server",
		"-Atc", query, "postgres")
	return strings.TrimSpace(out), err
}

// holds asks until the server has what was written.
func (r *rig) holds(server string) (string, error) {
	return r.until(time.Minute, func() (string, error) {
		got, err := r.sql(server, "select kind, sum(n) from fish group by kind")
		if err == nil && got != "shoal|50005000" {
			err = fmt.Errorf("read %q", got)
		}
		return got, err
	})
}

func runDatabase(r *rig) {
	if r.volumes == "" {
		r.check("the machine has mkfs.xfs", func() (string, error) {
			return "", errors.New("it is in Debian's xfsprogs")
		})
		return
	}
	// The driver of the second node would make its volumes on the same machine's other disk.
	if _, err := r.do("cordon "+nodes[1], "create namespace database")(); err != nil {
		r.check("is installed", func() (string, error) { return "", err })
		return
	}
	defer func() { _, _ = r.do("uncordon " + nodes[1])() }()
	if !r.installed("database", "statefulset/postgres", func() error {
		_, err := r.do("-n database apply -k docs/examples/postgres")()
		return err
	}) {
		return
	}
	r.check("it is filled, and the machine starts again", func() (string, error) {
		const fill = "create table fish as select 'shoal' as kind, generate_series(1, 10000) as n"
		if _, err := r.sql("postgres", fill); err != nil {
			return "", err
		}
		if err := errors.Join(r.Down(), r.Up()); err != nil {
			return "", err
		}
		return r.holds("postgres")
	})
	r.check("its volume grows", func() (string, error) {
		const claim = "-n database get pvc/data-postgres-0 -o jsonpath={.status.capacity.storage}"
		_, err := r.Kubectl("", "-n", "database", "patch", "pvc/data-postgres-0", "-p",
			`{"spec":{"resources":{"requests":{"storage":"512Mi"}}}}`)
		if err != nil {
			return "", err
		}
		// Not every machine lets ext4 grow while it is mounted (resize2fs(8)): CAP_SYS_RESOURCE.
		if _, err := r.shows(20*time.Second, claim, "512Mi")(); err != nil {
			if _, err := r.do("-n database delete pod/postgres-0")(); err != nil {
				return "", err
			}
			if _, err := r.shows(2*time.Minute, claim, "512Mi")(); err != nil {
				return "", err
			}
			if err := r.rollout("database", "statefulset/postgres"); err != nil {
				return "", err
			}
		}
		if _, err := r.sql("postgres",
			"create unlogged table much as select repeat('x', 900) from generate_series(1, 300000)"); err != nil {
			return "", err // 270 MB
		}
		if _, err := r.sql("postgres", "drop table much; checkpoint"); err != nil {
			return "", err
		}
		return r.holds("postgres")
	})
	r.check("snapshots are installed", r.installSnapshots)
	r.check("a snapshot is taken, and a second database made of it", func() (string, error) {
		_, err := r.do("-n database apply -f docs/examples/postgres/snapshot.yaml",
			"-n database wait volumesnapshot/postgres --for=jsonpath={.status.readyToUse}=true --timeout=90s")()
		if err != nil {
			return "", err
		}
		if _, err := r.sql("postgres", "drop table fish"); err != nil {
			return "", err
		}
		if _, err := r.do("-n database apply -k docs/examples/postgres-restored")(); err != nil {
			return "", err
		}
		if err := r.rollout("database", "statefulset/postgres-restored"); err != nil {
			return "", err
		}
		return r.holds("postgres-restored")
	})
	r.check("all of it goes with the StatefulSets", func() (string, error) {
		_, err := r.do("-n database delete volumesnapshot/postgres --timeout=60s",
			"-n database delete -k docs/examples/postgres", "-n database delete -k docs/examples/postgres-restored",
			"-n database wait --for=delete pvc --all --timeout=90s")()
		if err != nil {
			return "", err
		}
		return r.until(time.Minute, func() (string, error) {
			left, err := filepath.Glob(filepath.Join(r.volumes, "*", "*"))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("left: %v", left)
			}
			return "", err
		})
	})
}
