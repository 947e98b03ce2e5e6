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
	users := func(uid string) launch.Users {
		t.Helper()
		u, err := m.usersOf(
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{HostUsers: &no}})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	first := func(uid string) uint32 { return users(uid).First }
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
	// Ranges that are longer from now on are no others' either.
	m.Host.UsersPerPod = 2 * launch.UsersPerPod
	if e, again := users("e"), users("a2"); e != (launch.Users{First: 262144, Length: 131072}) || again.First != 393216 {
		t.Errorf("e got %+v, a2 %+v", e, again)
	}
	if b := users("b"); b != (launch.Users{First: 131072, Length: 65536}) {
		t.Errorf("b has %+v now", b)
	}
	if u, err := m.usersOf(&corev1.Pod{}); u != (launch.Users{}) || err != nil {
		t.Errorf("a pod with the node's users: %v, %v", u, err)
	}
}
