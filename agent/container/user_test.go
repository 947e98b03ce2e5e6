package container

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestUserOfImage: an image's files name the user; nothing else that has their
// names is read, waited for or kept in memory.
func TestUserOfImage(t *testing.T) {
	const passwd, group = "root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n", "www:x:34:\nextra:x:35:web\n"
	secret := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(secret, []byte("web:x:77:77::/:/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		make func(etc string) error
		uid  uint32
		ok   bool
	}{
		{"plain", func(etc string) error { return os.WriteFile(etc+"/passwd", []byte(passwd), 0o644) }, 33, true},
		{"absolute", func(etc string) error {
			return errors.Join(os.WriteFile(etc+"/real", []byte(passwd), 0o644), os.Symlink("/etc/real", etc+"/passwd"))
		}, 33, true},
		{"missing", func(string) error { return nil }, 0, false},
		{"outside", func(etc string) error { return os.Symlink(secret, etc+"/passwd") }, 0, false},
		{"upwards", func(etc string) error { return os.Symlink("../../../../../../../../.."+secret, etc+"/passwd") }, 0, false},
		{"fifo", func(etc string) error { return unix.Mkfifo(etc+"/passwd", 0o644) }, 0, false},
		{"device", func(etc string) error {
			return unix.Mknod(etc+"/passwd", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))
		}, 0, false},
		{"huge", func(etc string) error {
			return errors.Join(os.WriteFile(etc+"/passwd", []byte(passwd), 0o644), os.Truncate(etc+"/passwd", 1<<40))
		}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rootfs := t.TempDir()
			etc := filepath.Join(rootfs, "etc")
			if err := errors.Join(os.Mkdir(etc, 0o755), os.WriteFile(etc+"/group", []byte(group), 0o644), c.make(etc)); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				u, err := lookupUser(rootfs, &cri.LinuxContainerSecurityContext{}, "web")
				if (err == nil) != c.ok || u.UID != c.uid || c.ok && (u.GID != 34 || len(u.AdditionalGids) != 2) {
					t.Errorf("got %+v, %v", u, err)
				}
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatal("it hangs")
			}
		})
	}
}
