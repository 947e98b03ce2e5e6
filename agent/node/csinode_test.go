package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// csiWorld is an API, and a CSINode's writer that follows it.
type csiWorld struct {
	t      *testing.T
	client *fake.Clientset
	*CSINode
}

// playCSI runs a script in a bubble of time.
func playCSI(t *testing.T, objects []runtime.Object, script func(w csiWorld)) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(objects...)
		c := &CSINode{Client: client, Name: "n", Silence: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		script(csiWorld{t, client, c})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func thisNode(uid types.UID, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: uid, Labels: labels}}
}

// show prints what the API has.
func (w csiWorld) show() string {
	w.t.Helper()
	synctest.Wait()
	var b strings.Builder
	n, err := w.client.CoreV1().Nodes().Get(w.t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		fmt.Fprintf(&b, "%s=%s ", key, n.Labels[key])
	}
	fmt.Fprintf(&b, "%s\n", n.Annotations[nodeIDs])
	c, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return b.String()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	owner := c.OwnerReferences[0]
	fmt.Fprintf(&b, "%s/%s/%s/%s %v\n", owner.APIVersion, owner.Kind, owner.Name, owner.UID,
		c.Annotations["storage.alpha.kubernetes.io/migrated-plugins"] == migrated)
	for _, d := range c.Spec.Drivers {
		count := "no limit"
		if d.Allocatable != nil {
			count = fmt.Sprint(*d.Allocatable.Count)
		}
		fmt.Fprintf(&b, "%s %s %q %s\n", d.Name, d.NodeID, d.TopologyKeys, count)
	}
	return b.String()
}

func (w csiWorld) want(want ...string) {
	w.t.Helper()
	if got := w.show(); got != strings.Join(want, "\n")+"\n" {
		w.t.Errorf("got\n%swant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestDriversAreShown: drivers come, change and go.
func TestDriversAreShown(t *testing.T) {
	playCSI(t, []runtime.Object{thisNode("u", nil)}, func(w csiWorld) {
		w.want("")
		w.Heed(thisNode("u", nil))
		w.want("", "v1/Node/n/u true")
		err := errors.Join(
			w.Install(w.t.Context(), StorageDriver{Name: "b", NodeID: "n-b"}),
			w.Install(w.t.Context(), StorageDriver{Name: "a", NodeID: "n-a", MaxVolumes: 1 << 40,
				Topology: map[string]string{"rack": "1", "room": "2"}}),
		)
		if err != nil {
			t.Error(err)
		}
		w.want(`rack=1 room=2 {"a":"n-a","b":"n-b"}`, "v1/Node/n/u true",
			`b n-b [] no limit`, `a n-a ["rack" "room"] 2147483647`)
		if err := w.Install(w.t.Context(), StorageDriver{Name: "b", NodeID: "n-b", MaxVolumes: 4}); err != nil {
			t.Error(err)
		}
		w.want(`rack=1 room=2 {"a":"n-a","b":"n-b"}`, "v1/Node/n/u true",
			`a n-a ["rack" "room"] 2147483647`, `b n-b [] 4`)
		w.Uninstall("a")
		w.want(`rack=1 room=2 {"b":"n-b"}`, "v1/Node/n/u true", `b n-b [] 4`)
		w.Uninstall("b")
		w.want("rack=1 room=2 ", "v1/Node/n/u true")
	})
}

// TestDriverIsRefused: what cannot be shown is told to the driver, and the others
// are shown.
func TestDriverIsRefused(t *testing.T) {
	node := thisNode("u", map[string]string{"rack": "1"})
	playCSI(t, []runtime.Object{node}, func(w csiWorld) {
		var refuse atomic.Bool
		w.client.PrependReactor("update", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !refuse.Load() {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(storagev1.Resource("csinodes"), "n", errors.New("no"))
		})
		w.Heed(node)
		err := w.Install(w.t.Context(), StorageDriver{Name: "a", NodeID: "n-a", Topology: map[string]string{"rack": "2"}})
		want := `error updating Node object with CSI driver node info: detected topology value collision: ` +
			`driver reported "rack":"2" but existing label is "rack":"1"`
		if fmt.Sprint(err) != want {
			t.Errorf("got %v", err)
		}
		if err := w.Install(w.t.Context(), StorageDriver{Name: "b"}); fmt.Sprint(err) !=
			"error adding CSI driver node info: driverNodeID must not be empty" {
			t.Errorf("got %v", err)
		}
		refuse.Store(true)
		if err := w.Install(w.t.Context(), StorageDriver{Name: "c", NodeID: "n-c"}); err == nil ||
			!apierrors.IsForbidden(err) {
			t.Errorf("got %v", err)
		}
		refuse.Store(false)
		if err := w.Install(w.t.Context(), StorageDriver{Name: "d", NodeID: "n-d"}); err != nil {
			t.Error(err)
		}
		w.want(`rack=1 {"c":"n-c","d":"n-d"}`, "v1/Node/n/u true", "d n-d [] no limit")
	})
}

// TestAnotherNode: a CSINode of a Node that was deleted is made anew for the next
// of the name, with the drivers that are there.
func TestAnotherNode(t *testing.T) {
	old := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "c1",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "old"}}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "gone", NodeID: "x"}}}}
	playCSI(t, []runtime.Object{thisNode("u", nil), old}, func(w csiWorld) {
		w.Heed(thisNode("u", nil))
		w.want("", "v1/Node/n/u true")
		if err := w.Install(w.t.Context(), StorageDriver{Name: "a", NodeID: "n-a"}); err != nil {
			t.Error(err)
		}
		w.Heed(thisNode("u2", nil))
		w.want(`{"a":"n-a"}`, "v1/Node/n/u2 true", "a n-a [] no limit")
	})
}

// TestDriversOfAnEarlierAgent stay until they register again or go.
func TestDriversOfAnEarlierAgent(t *testing.T) {
	old := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"}}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "earlier", NodeID: "x"}}}}
	playCSI(t, []runtime.Object{thisNode("u", nil), old}, func(w csiWorld) {
		w.Heed(thisNode("u", nil))
		w.want("", "v1/Node/n/u true", "earlier x [] no limit")
	})
}

// TestSilentAPIHoldsUpNoDriver: it is shown when the API is back.
func TestSilentAPIHoldsUpNoDriver(t *testing.T) {
	playCSI(t, []runtime.Object{thisNode("u", nil)}, func(w csiWorld) {
		var silent atomic.Bool
		silent.Store(true)
		w.client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return silent.Load(), nil, errors.New("connection refused")
		})
		w.Heed(thisNode("u", nil))
		if err := w.Install(w.t.Context(), StorageDriver{Name: "a", NodeID: "n-a"}); err != nil {
			t.Error(err)
		}
		silent.Store(false)
		time.Sleep(10 * time.Second) // of the bubble: longer than the pause between tries
		w.want(`{"a":"n-a"}`, "v1/Node/n/u true", "a n-a [] no limit")
	})
}
