package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/checkpoint"
)

// mortalAgent is an agent of its own process: it makes or undoes the volumes of a pod.
func mortalAgent() {
	root, state := os.Getenv("SHOAL_TEST_ROOT"), os.Getenv(fakeState)
	log := slog.New(slog.DiscardHandler)
	store, err := checkpoint.OpenVolatile[Volume](filepath.Join(root, "checkpoint"), nil, "damaged", log)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pv := iscsiDisk("v", targetA, 0, func(s *corev1.ISCSIPersistentVolumeSource) {
		s.Portals = nil
		s.SessionCHAPAuth, s.DiscoveryCHAPAuth, s.SecretRef = true, true, &corev1.SecretReference{Name: "chap"}
	})
	m := &Manager{RootDir: filepath.Join(root, "kubelet"), Claims: oneVolume{pv}, Objects: objects{secrets: chapSecret()},
		Records: store, Log: log, disks: readNet(state).node(), Boot: "b"}
	p, ctx := csiPod("p", claimed("v")), context.Background()
	switch err = m.Restore(nil); {
	case err != nil:
	case os.Args[1] == "ensure":
		err = m.Ensure(ctx, p)
	default:
		err = m.Release(ctx, p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestISCSIAgentKilled has the agent killed by SIGKILL before and after every command
// that it gives, with real mounts: the next one finishes, or undoes all. The disk gets
// a file system once, and never again.
func TestISCSIAgentKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	n, root := iscsiNet(t), t.TempDir()
	n.Portals[portal1].Search, n.Targets[targetA].Login = "seeker:"+password, "me:"+password
	t.Setenv("SHOAL_TEST_ROOT", root)
	t.Cleanup(func() {
		if err := UnmountUnder(root); err != nil {
			t.Error(err)
		}
	})
	agent := func(do string, kill int, after bool) (killed bool) {
		n.Kill, n.After = kill, after
		n.save(t)
		_ = os.Remove(n.path("log")) // its commands are counted anew
		out, err := exec.Command("mortal-agent", do).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() < 0 {
			return true
		}
		if err != nil {
			t.Fatalf("%s, to be killed at %d: %v %s", do, kill, err, out)
		}
		return false
	}
	file := filepath.Join(root, "kubelet/pods/u-p/volumes/kubernetes.io~iscsi/v/data")
	check := func(when string) {
		t.Helper()
		at, err := mountsAt(filepath.Join(root, "kubelet/plugins/kubernetes.io/iscsi/iface-default",
			portal1+"-"+targetA+"-lun-0"))
		records, _ := filepath.Glob(filepath.Join(root, "checkpoint/*"))
		if left := n.left(); len(left) > 0 || at > 0 || err != nil {
			t.Errorf("%s: left are %q, %d mounts, %v", when, left, at, err)
		}
		if _, err := os.Lstat(filepath.Dir(file)); err == nil {
			t.Errorf("%s: the pod's directory is left; records: %q", when, records)
		}
	}
	agent("ensure", 0, false)
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent("release", 0, false)
	check("without a kill")
	for _, after := range []bool{false, true} {
		for at := 1; agent("ensure", at, after); at++ {
			agent("release", 0, false)
			check(fmt.Sprintf("killed at command %d of its start (after: %v)", at, after))
		}
		agent("release", 0, false)
		for at := 1; ; at++ {
			agent("ensure", 0, false)
			if data, err := os.ReadFile(file); err != nil || string(data) != "kept" {
				t.Fatalf("the disk has %q, %v", data, err)
			}
			killed := agent("release", at, after)
			agent("release", 0, false)
			check(fmt.Sprintf("killed at command %d of its end (after: %v)", at, after))
			if !killed {
				break
			}
		}
	}
}
