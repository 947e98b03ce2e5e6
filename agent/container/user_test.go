package container

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
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
		{"upwards", func(etc string) error { return os.Symlink("../../../../../../../../.."+secret, etc+"/passwd") },
			0, false},
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
			if err := errors.Join(os.Mkdir(etc, 0o755), os.WriteFile(etc+"/group", []byte(group), 0o644),
				c.make(etc)); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				u, err := lookupUser(rootfs, &criv1.LinuxContainerSecurityContext{}, "web")
				if (err == nil) != c.ok || u.UID != c.uid || c.ok && (u.GID != 34 || len(u.AdditionalGids) != 2) {
					t.Errorf("got %+v, %v", u, err)
				}
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("it hangs")
			}
		})
	}
}

// FuzzUser: an image's files name a user or none; what they hold makes no other
// numbers than the kernel's.
func FuzzUser(f *testing.F) {
	f.Add([]byte("root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n"), []byte("www:x:34:\nextra:x:35:web\n"), "web")
	f.Add([]byte("a:b:c:d\n::::::\nweb:x:-1:4294967296:::\n"), []byte(":::\nweb:x:99999999999999999999:,,web\n"), "web:www")
	f.Add([]byte(nil), []byte(nil), "4294967295:4294967295")
	f.Add([]byte("0:x:1:1::/:\n"), []byte("0:x:2:0\n"), "0:0")
	rootfs := f.TempDir()
	etc := filepath.Join(rootfs, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, passwd, group []byte, image string) {
		if err := errors.Join(os.WriteFile(etc+"/passwd", passwd, 0o600),
			os.WriteFile(etc+"/group", group, 0o600)); err != nil {
			t.Fatal(err)
		}
		u, err := lookupUser(rootfs, &criv1.LinuxContainerSecurityContext{}, image)
		if err != nil {
			return
		}
		for _, id := range append([]uint32{u.UID, u.GID}, u.AdditionalGids...) {
			if id > math.MaxInt32 {
				t.Errorf("%q of %q, %q: %+v", image, passwd, group, u)
			}
		}
	})
}
