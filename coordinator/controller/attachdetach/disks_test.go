package attachdetach

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// TestAdoptAll: what the leader before wrote last counts, though the cache does not have it.
func TestAdoptAll(t *testing.T) {
	const old, last corev1.UniqueVolumeName = "kubernetes.io/iscsi/old", "kubernetes.io/iscsi/last"
	node := func(disk corev1.UniqueVolumeName) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Status: corev1.NodeStatus{VolumesAttached: []corev1.AttachedVolume{{Name: disk}}}}
	}
	client := fake.NewClientset(node(last))
	r := &reconciler{client: client, loop: controller.New("attachdetach", 1, slog.New(slog.DiscardHandler)),
		told: map[string]telling{}, disks: map[string]map[corev1.UniqueVolumeName]bool{}}
	ended, end := context.WithCancel(t.Context())
	end()
	defer func() { _ = r.loop.Run(ended) }() // which ends its queue
	r.adopt(node(old))                       // of the cache
	for range 2 {
		if err := r.adoptAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !r.haveDisk(last)["a"] || r.haveDisk(old)["a"] {
		t.Errorf("node a has %v", r.disks["a"])
	}
	if lists := len(client.Actions()); lists != 1 {
		t.Errorf("Nodes were listed %d times", lists)
	}
}
