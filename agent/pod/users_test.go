package pod

import (
	"errors"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/pod/launch"
)

// Pods get ranges of their own, keep them, and leave them to others.
func TestUserNamespaces(t *testing.T) {
	m := &Manager{Host: &launch.Host{RootDir: t.TempDir()}}
	no := false
	first := func(uid string) launch.Users {
		t.Helper()
		u, err := m.usersOf(
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{HostUsers: &no}})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if a, b, again := first("a"), first("b"), first("a"); a != 65536 || b != 131072 || again != a {
		t.Errorf("a %d, b %d, a again %d", a, b, again)
	}
	if err := os.RemoveAll(m.Host.RootDir + "/pods/a"); err != nil {
		t.Fatal(err)
	}
	if c := first("c"); c != 65536 {
		t.Errorf("c got %d instead of what a left", c)
	}
	// A file that is gone when it is read is of a pod that is removed just now.
	if err := errors.Join(os.Mkdir(m.Host.RootDir+"/pods/x", 0o750),
		os.Symlink("gone", m.Host.RootDir+"/pods/x/userns")); err != nil {
		t.Fatal(err)
	}
	if d := first("d"); d != 196608 {
		t.Errorf("d got %d", d)
	}
	if u, err := m.usersOf(&corev1.Pod{}); u != 0 || err != nil {
		t.Errorf("a pod with the node's users: %v, %v", u, err)
	}
}
