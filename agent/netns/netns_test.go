package netns

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamespacesArePinnedAndRemoved(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("namespaces need root: run the tests as root")
	}
	dir := t.TempDir()
	p := Pins{Net: filepath.Join(dir, "net"), UTS: filepath.Join(dir, "uts"), IPC: filepath.Join(dir, "ipc")}
	err := Create(p, func() error {
		if err := LoopbackUp(); err != nil {
			return err
		}
		return unix.Sethostname([]byte("inside"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Fatal("the namespaces are not pinned")
	}
	err = Do(p.Net, func() error {
		ifs, err := net.Interfaces()
		if len(ifs) != 1 || ifs[0].Flags&net.FlagUp == 0 {
			t.Errorf("interfaces inside: %v", ifs)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := os.Hostname(); name == "inside" {
		t.Error("the host's name changed")
	}
	for range 2 {
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if p.Alive() {
		t.Error("the namespaces are still pinned")
	}
}
