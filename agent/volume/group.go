package volume

import (
	"errors"
	"log/slog"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/beneath"
)

func fsGroup(p *corev1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

func changePolicy(p *corev1.Pod) corev1.PodFSGroupChangePolicy {
	if s := p.Spec.SecurityContext; s != nil && s.FSGroupChangePolicy != nil {
		return *s.FSGroupChangePolicy
	}
	return corev1.FSGroupChangeAlways
}

// own gives all files below dir to a group, readable and writable by it; files
// made later inherit it. With OnRootMismatch nothing is done when dir is so
// already. Other pods may change the volume at the same time, so that each file
// is changed by its descriptor. What cannot be changed stays as it is, as with the
// kubelet: a server gives root no rights, or the directory with its snapshots is
// read-only.
func own(dir string, group int, policy corev1.PodFSGroupChangePolicy, log *slog.Logger) error {
	d, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	root, err := d.Self()
	if err != nil {
		return err
	}
	if policy == corev1.FSGroupChangeOnRootMismatch && int(root.Stat.Gid) == group && root.Stat.Mode&dirBits == dirBits {
		return nil
	}
	var refused error // the first
	change := func(e *beneath.Entry) error {
		if err := ownFile(e, group); err != nil && refused == nil {
			refused = err
		}
		return nil
	}
	// The root last, so that what was cut off is done again.
	err = errors.Join(d.Walk(".", change), change(root))
	if refused != nil && log != nil {
		log.Warn("not all of a volume can be given to the pod's group", "path", dir, "group", group, "err", refused)
	}
	return err
}

// What a group needs of files and directories; new files inherit the group.
const (
	fileBits = 0o660
	dirBits  = unix.S_ISGID | 0o770
)

func ownFile(e *beneath.Entry, group int) error {
	err := e.Chown(-1, group)
	switch {
	case e.IsLink():
		return err
	case e.IsDir():
		return errors.Join(err, e.Chmod(e.Stat.Mode|dirBits))
	}
	return errors.Join(err, e.Chmod(e.Stat.Mode|fileBits))
}
