package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// nfsDriver mounts directories of NFS servers for pods, by the node's own mount
// program and its helper mount.nfs. Their content outlives the pods.
type nfsDriver struct {
	fixed
	mounts mounter
}

// Supports implements driver.
func (nfsDriver) Supports(s Source) bool { return nfsOf(s) != nil }

// Path implements driver.
func (nfsDriver) Path(podDir string, s Source) string {
	return filepath.Join(podDir, "volumes", "kubernetes.io~nfs", s.name())
}

// Mount implements driver.
func (d nfsDriver) Mount(ctx context.Context, _ *corev1.Pod, v *Volume) (time.Time, error) {
	nfs := nfsOf(v.Source)
	source, err := nfsSource(nfs)
	if err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(v.Path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return time.Time{}, err
	}
	return time.Time{}, d.mounts.Mount(ctx, "nfs", source, v.Path, mountOptions(v.Source, nfs.ReadOnly))
}

// Unmount implements driver. The directory is removed only where it is empty: what
// a server shows there is never taken for the node's.
func (d nfsDriver) Unmount(ctx context.Context, v *Volume) error {
	if err := d.mounts.Unmount(ctx, v.Path); err != nil {
		return err
	}
	if err := os.Remove(v.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func nfsOf(s Source) *corev1.NFSVolumeSource {
	if s.Persistent != nil {
		return s.Persistent.Spec.NFS
	}
	return s.Volume.NFS
}

// nfsSource is what mount.nfs is to mount. A server that reads as an option of it
// is refused: users of pods name servers, and are not to choose options.
func nfsSource(nfs *corev1.NFSVolumeSource) (string, error) {
	server := nfs.Server
	if strings.HasPrefix(server, "-") || strings.ContainsAny(server, ", \t\n") {
		return "", fmt.Errorf("nfs.server %q is neither a host name nor an address", server)
	}
	if ip := net.ParseIP(server); ip != nil && ip.To4() == nil {
		server = "[" + server + "]"
	}
	return server + ":" + nfs.Path, nil
}

// mountOptions are those that the persistent volume asks for, in order and once.
func mountOptions(s Source, readOnly bool) []string {
	var options []string
	if readOnly || s.Volume.PersistentVolumeClaim != nil && s.Volume.PersistentVolumeClaim.ReadOnly {
		options = append(options, "ro")
	}
	if s.Persistent != nil {
		options = append(options, s.Persistent.Spec.MountOptions...)
	}
	slices.Sort(options)
	return slices.Compact(options)
}
