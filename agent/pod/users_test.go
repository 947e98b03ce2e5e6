package pod

import (
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
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
		u, err := m.usersOf(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: v1.PodSpec{HostUsers: &no}})
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
	if u, err := m.usersOf(&v1.Pod{}); u != 0 || err != nil {
		t.Errorf("a pod with the node's users: %v, %v", u, err)
	}
}
