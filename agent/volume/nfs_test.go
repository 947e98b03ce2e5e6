package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNFSSource: what is mounted is a server's directory, never an option.
func TestNFSSource(t *testing.T) {
	for server, want := range map[string]string{
		"files":       "files:/e",
		"192.0.2.1":   "192.0.2.1:/e",
		"2001:db8::1": "[2001:db8::1]:/e",
		"-oexec":      `nfs.server "-oexec" is neither a host name nor an address`,
		"a b":         `nfs.server "a b" is neither a host name nor an address`,
	} {
		got, err := nfsSource(&corev1.NFSVolumeSource{Server: server, Path: "/e"})
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", server, got, want)
		}
	}
}

// TestNFSOptions: the claim's and the volume's wishes, each once.
func TestNFSOptions(t *testing.T) {
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{MountOptions: []string{"soft", "nolock", "soft"}}}
	s := Source{Volume: claimed("c"), Persistent: pv}
	if got, want := mountOptions(s, false), []string{"nolock", "soft"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	s.Volume.PersistentVolumeClaim.ReadOnly = true
	if got, want := mountOptions(s, false), []string{"nolock", "ro", "soft"}; !slices.Equal(got, want) {
		t.Errorf("read-only: %q, want %q", got, want)
	}
}

// programs puts scripts in the place of the node's programs.
func programs(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// TestMountProgram: what the program says is told, within bounds, and that its
// helper is missing.
func TestMountProgram(t *testing.T) {
	programs(t, map[string]string{"mount": `echo "$*"; i=0; while [ $i -lt 999 ]; do echo bad option; i=$((i+1)); done; exit 32`})
	target := t.TempDir()
	err := kernel{}.Mount(t.Context(), "nfs", "files:/e", target, []string{"ro", "soft"})
	want := "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -o ro,soft -- files:/e " +
		target + "\nOutput: -t nfs -o ro,soft -- files:/e " + target + "\nbad option\n"
	if err == nil || !strings.HasPrefix(err.Error(), want) ||
		!strings.HasSuffix(err.Error(), "The program mount.nfs is not installed on this node.\n") ||
		len(err.Error()) > programOutput+len(want)+200 {
		t.Errorf("got %v", err)
	}
}

// TestMountProgramHangs: a server that does not answer keeps nobody beyond the
// time that the caller gives.
func TestMountProgramHangs(t *testing.T) {
	programs(t, map[string]string{"mount": "while :; do read x < /dev/zero; done"})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := kernel{}.Mount(ctx, "nfs", "files:/e", t.TempDir(), nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestNFS goes the whole way with a tmpfs in the server's place: mounted once,
// unmounted whole, and never a file of it removed.
func TestNFS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	programs(t, map[string]string{
		"mount":  `for last; do :; done; exec /bin/mount -t tmpfs files "$last"`,
		"umount": `exec /bin/umount "$@"`,
	})
	d := nfsDriver{mounts: kernel{}}
	v := &Volume{Source: Source{
		Volume: claimed("c"),
		Persistent: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				NFS: &corev1.NFSVolumeSource{Server: "files", Path: "/e"}}}},
	}}
	v.Path = d.Path(dir, v.Source)
	if want := filepath.Join(dir, "volumes/kubernetes.io~nfs/pv"); v.Path != want {
		t.Errorf("it lies at %s, want %s", v.Path, want)
	}
	t.Cleanup(func() {
		if err := UnmountUnder(dir); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if _, err := d.Mount(t.Context(), nil, v); err != nil {
			t.Fatal(err)
		}
		if at, err := mountsAt(v.Path); at != 1 || err != nil {
			t.Fatalf("%d mounts, %v", at, err)
		}
	}
	if err := os.WriteFile(filepath.Join(v.Path, "content"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Unmount(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(v.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	// Not mounted, and yet something is there: it stays.
	if err := os.MkdirAll(filepath.Join(v.Path, "kept"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Unmount(t.Context(), v); err == nil {
		t.Error("what may be a server's is removed")
	}
}
