package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi/csitest"
	"github.com/shoal-project/shoal/tests/harness"
)

const (
	volumeDriver = "chaos.csi.test"
	// attacherMark is the finalizer by which an attachment stays until it is undone.
	attacherMark = "chaos.csi.test/attached"
	chaosVolumes = 6
	otherNode    = "other"
)

// TestVolumesOfKilledNodes: kill -9 of two nodes' agents, and at times of the
// coordinator, at random moments, while pods with volumes come and go on both and the
// driver refuses some calls and leaves others open. No volume is ever attached to two
// nodes, used where it is not attached, detached while a node has it, or staged twice;
// and in the end nothing of them is left.
//
// SHOAL_CHAOS_TIME has it go on for longer: 30m.
func TestVolumesOfKilledNodes(t *testing.T) {
	last := 20 * time.Second
	if text := os.Getenv("SHOAL_CHAOS_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("SHOAL_CHAOS_TIME: %v", err)
		}
		last = d
	}
	config, err := cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	other, err := cluster.Join(otherNode)
	if err != nil {
		t.Fatal(err)
	}
	s := &storage{client: kubernetes.NewForConfigOrDie(config), owners: map[string]string{}, faulty: true}
	s.node("node1", cluster.Dir).register(t)
	s.node(otherNode, other.Dir).register(t)
	s.makeVolumes(t)

	ctx, cancel := context.WithCancel(context.Background())
	var attacher, workers sync.WaitGroup
	working, stop := context.WithCancel(ctx)
	attacher.Go(func() { s.attach(ctx) })
	for i := range chaosVolumes {
		workers.Go(func() { s.work(working, i) })
	}
	kills := map[string]int{}
	for end := time.Now().Add(last); time.Now().Before(end) && !s.failed(); {
		time.Sleep(500*time.Millisecond + rand.N(3*time.Second)) // to hit any step
		switch n := rand.N(11); {
		case n == 0:
			cluster.Kill(t, "coordinator")
			kills["coordinator"]++
		case n < 6:
			cluster.Kill(t, "agent")
			kills["node1"]++
		default:
			if err := errors.Join(other.Kill(), other.Start()); err != nil {
				t.Fatal(err)
			}
			kills[otherNode]++
		}
	}
	stop()
	workers.Wait()
	s.mu.Lock()
	s.faulty = false
	s.mu.Unlock()
	left := ""
	// Others' states have no events here.
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		if left = s.left(); left == "" || s.failed() || time.Now().After(end) {
			break
		}
	}
	cancel()
	attacher.Wait()
	t.Logf("%v: %v kills, %d pods ran, %d were deleted on their way, %d attachments, %d calls failed", last, kills,
		s.ran.Load(), s.early.Load(), s.attached.Load(), s.refused.Load())
	if left != "" {
		s.fault("left: %s", left)
	}
	for _, f := range s.faults {
		t.Error(f)
	}
	if t.Failed() {
		t.Log(cluster.Logs(), other.Logs())
	}
	if err := other.Stop(); err != nil {
		t.Error(err)
	}
}

// storage is a storage system that the nodes share, and who uses it.
type storage struct {
	client                        *kubernetes.Clientset
	nodes                         []*storageNode
	ran, early, attached, refused atomic.Int64

	mu     sync.Mutex
	faulty bool              // whether the driver fails at times
	owners map[string]string // the node that a volume is attached to
	faults []string
}

// storageNode is the driver on a node.
type storageNode struct {
	*storage
	*csitest.Driver
	name, kubelet, records string
}

func (s *storage) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

func (s *storage) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.faults) > 0
}

func (s *storage) node(name, dir string) *storageNode {
	n := &storageNode{storage: s, name: name, kubelet: filepath.Join(dir, "kubelet"),
		records: filepath.Join(dir, "agent", "checkpoint", "volumes")}
	n.Driver = &csitest.Driver{
		Name: volumeDriver, Mounts: csitest.Memory{}, Before: n.before, After: n.after,
		Info:         &csipb.NodeGetInfoResponse{NodeId: name},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	s.nodes = append(s.nodes, n)
	return n
}

func (n *storageNode) register(t *testing.T) {
	t.Helper()
	registry := filepath.Join(n.kubelet, "plugins_registry")
	harness.Eventually(t, "plugins can register", func() (bool, string) {
		_, err := os.Stat(registry)
		return err == nil, fmt.Sprint(err)
	})
	told, _ := n.Register(t, registry, n.Serve(t))
	select {
	case answer := <-told:
		if answer != "" {
			t.Fatalf("%s: the driver is not registered: %s", n.name, answer)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s: nobody heard the driver register", n.name)
	}
}

// before has a twentieth of the calls refused, and looks whether the volume is here.
func (n *storageNode) before(_ context.Context, method, volume string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if volume != "" && (method == "NodeStageVolume" || method == "NodePublishVolume") && n.owners[volume] != n.name {
		n.faults = append(n.faults, fmt.Sprintf("%s of %s on %s, while it is attached to %q", method, volume, n.name,
			n.owners[volume]))
	}
	return n.chance(volume, codes.Internal)
}

// after has it left open whether a twentieth of the calls did something.
func (n *storageNode) after(_ context.Context, _, volume string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.chance(volume, codes.DeadlineExceeded)
}

func (s *storage) chance(volume string, code codes.Code) error {
	if !s.faulty || volume == "" || rand.N(20) != 0 {
		return nil
	}
	s.refused.Add(1)
	return status.Error(code, "by chance")
}

func volumeName(i int) string { return fmt.Sprint("chaos-", i) }

func (s *storage) makeVolumes(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	_, err := s.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: volumeDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(true)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	room := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	for i := range chaosVolumes {
		name := volumeName(i)
		mode := corev1.PersistentVolumeFilesystem
		if i%3 == 2 {
			mode = corev1.PersistentVolumeBlock
		}
		_, err := s.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: room, AccessModes: modes, StorageClassName: "by-hand", VolumeMode: &mode,
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: volumeDriver, VolumeHandle: name}},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: ptr.To("by-hand"),
				VolumeName: name, VolumeMode: &mode, Resources: corev1.VolumeResourceRequirements{Requests: room}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// attach is the driver's attacher. It is as hasty as the API lets it be.
func (s *storage) attach(ctx context.Context) {
	attachments := s.client.StorageV1().VolumeAttachments()
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) { // a watch would end with each coordinator
		list, err := attachments.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // it is being started
		}
		for _, a := range list.Items {
			if a.Spec.Attacher == volumeDriver {
				_ = s.attachment(ctx, &a) // what did not succeed comes again
			}
		}
	}
}

func (s *storage) attachment(ctx context.Context, a *storagev1.VolumeAttachment) error {
	volume, node := *a.Spec.Source.PersistentVolumeName, a.Spec.NodeName
	attachments := s.client.StorageV1().VolumeAttachments()
	switch marked := slices.Contains(a.Finalizers, attacherMark); {
	case a.DeletionTimestamp != nil && marked:
		s.detached(volume, node)
		a.Finalizers = nil
		_, err := attachments.Update(ctx, a, metav1.UpdateOptions{})
		return err
	case a.DeletionTimestamp != nil || a.Status.Attached:
		return nil
	case !marked:
		a.Finalizers = append(a.Finalizers, attacherMark)
		_, err := attachments.Update(ctx, a, metav1.UpdateOptions{})
		return err
	}
	s.mu.Lock()
	owner := s.owners[volume]
	s.owners[volume] = node
	s.mu.Unlock()
	if owner != "" && owner != node {
		s.fault("%s is attached to %s and to %s", volume, owner, node)
	}
	s.attached.Add(1)
	a.Status.Attached = true
	_, err := attachments.UpdateStatus(ctx, a, metav1.UpdateOptions{})
	return err
}

// detached takes a volume from a node, which must have nothing of it.
func (s *storage) detached(volume, node string) {
	s.mu.Lock()
	owner := s.owners[volume]
	if owner == node {
		s.owners[volume] = ""
	}
	s.mu.Unlock()
	for _, n := range s.nodes {
		if n.name == node && owner == node && strings.Contains(n.String(), " "+volume+" at ") {
			s.fault("%s is taken from %s, which has\n%s", volume, node, n)
		}
	}
}

// work has pods use a volume, on either node.
func (s *storage) work(ctx context.Context, volume int) {
	for i := 0; ctx.Err() == nil && !s.failed(); i++ {
		if err := s.use(volumeName(volume), fmt.Sprintf("uses-%d-%d", volume, i), volume%3 == 2); err != nil {
			s.fault("%s: %v", volumeName(volume), err)
		}
	}
}

// use makes a pod, and deletes it on its way or when it runs.
func (s *storage) use(claim, name string, block bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute) // over back-offs and restarts
	defer cancel()
	pods := s.client.CoreV1().Pods("default")
	c := corev1.Container{Name: "c", Image: "localhost/busybox:1", Command: []string{"sleep", "3600"}}
	if block {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	} else {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{c},
		NodeSelector: map[string]string{corev1.LabelHostname: []string{"node1", otherNode}[rand.N(2)]},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
	}}
	err := again(ctx, func() error {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if rand.N(3) == 0 {
		time.Sleep(rand.N(2 * time.Second))
		s.early.Add(1)
	} else {
		err = again(ctx, func() error {
			p, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err == nil && p.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("%s on %s: %s %+v", name, p.Spec.NodeName, p.Status.Phase, p.Status.Conditions)
			}
			return err
		})
		if err != nil {
			return err
		}
		s.ran.Add(1)
	}
	return again(ctx, func() error {
		err := pods.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("%s is not gone", name))
	})
}

// again asks until it succeeds: the coordinator is killed at times.
func again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// left is what is there of volumes when no pod is.
func (s *storage) left() string {
	ctx := context.Background()
	var left []string
	for _, n := range s.nodes {
		left = append(left, n.String())
		records, _ := filepath.Glob(filepath.Join(n.records, "*"))
		left = append(left, records...)
		staged, _ := filepath.Glob(filepath.Join(n.kubelet, "plugins/kubernetes.io/csi", volumeDriver, "*"))
		left = append(left, staged...)
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(n.kubelet))
		if err != nil {
			return err.Error()
		}
		for _, m := range mounts {
			if strings.Contains(m.Mountpoint, "csi") {
				left = append(left, m.Mountpoint)
			}
		}
		node, err := s.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, v := range node.Status.VolumesInUse {
			left = append(left, n.name+" uses "+string(v))
		}
		for _, v := range node.Status.VolumesAttached {
			left = append(left, n.name+" has "+string(v.Name))
		}
	}
	attachments, err := s.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, a := range attachments.Items {
		left = append(left, a.Name)
	}
	return strings.TrimSpace(strings.Join(left, "\n"))
}
