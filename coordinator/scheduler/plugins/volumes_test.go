package plugins

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelper "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/csi/locality"
)

// shelf is storage that a test fills.
type shelf struct {
	claims     map[string]*corev1.PersistentVolumeClaim
	volumes    []*corev1.PersistentVolume
	classes    map[string]*storagev1.StorageClass
	capacities []*storagev1.CSIStorageCapacity
	reported   bool

	snapshots   map[string]string // nodes
	limits      map[string]map[string]int64
	attachments []*storagev1.VolumeAttachment
}

func (s *shelf) Limits(node string) map[string]int64 { return s.limits[node] }

func (s *shelf) SnapshotNode(_, name string) string { return s.snapshots[name] }

func (s *shelf) Attachments() ([]*storagev1.VolumeAttachment, error) { return s.attachments, nil }

func missing(kind, name string) error { return apierrors.NewNotFound(corev1.Resource(kind), name) }

func (s *shelf) Claim(_, name string) (*corev1.PersistentVolumeClaim, error) {
	if c := s.claims[name]; c != nil {
		return c, nil
	}
	return nil, missing("persistentvolumeclaim", name)
}

func (s *shelf) Volume(name string) (*corev1.PersistentVolume, error) {
	for _, v := range s.volumes {
		if v.Name == name {
			return v, nil
		}
	}
	return nil, missing("persistentvolume", name)
}

func (s *shelf) Volumes() ([]*corev1.PersistentVolume, error) { return s.volumes, nil }

func (s *shelf) Class(name string) (*storagev1.StorageClass, error) {
	if c := s.classes[name]; c != nil {
		return c, nil
	}
	return nil, missing("storageclass", name)
}

func (s *shelf) Capacities(string, string) ([]*storagev1.CSIStorageCapacity, bool, error) {
	return s.capacities, s.reported, nil
}

func storageClaim(volume string, done bool) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "ns", UID: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: volume, StorageClassName: ptr.To("x"),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}},
		},
	}
	if done {
		c.Annotations = map[string]string{storagehelper.AnnBindCompleted: "yes"}
	}
	return c
}

func volumeAt(name, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "x", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "host", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
				}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

func storageClass(provisioner string, mode storagev1.VolumeBindingMode) map[string]*storagev1.StorageClass {
	return map[string]*storagev1.StorageClass{"x": {Provisioner: provisioner, VolumeBindingMode: &mode}}
}

// TestVolumeBinding covers PV-70, PV-85, VOL-57, VOL-58, VOL-60, SC-13, SC-16, CAP-3, CAP-4.
func TestVolumeBinding(t *testing.T) {
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	room := func(size, node string) []*storagev1.CSIStorageCapacity {
		return []*storagev1.CSIStorageCapacity{{Capacity: ptr.To(resource.MustParse(size)),
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"host": node}}}}
	}
	zoned := storageClass("p", waits)
	zoned["x"].AllowedTopologies = []corev1.TopologySelectorTerm{
		{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "host", Values: []string{"b"}}}}}
	chosen := storageClaim("", false)
	chosen.Annotations = map[string]string{storagehelper.AnnSelectedNode: "b"}
	source, clone := storageClaim("kept", true), storageClaim("", false)
	source.Name = "source"
	clone.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
	restored := storageClaim("", false)
	restored.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ptr.To(locality.SnapshotGroup),
		Kind: "VolumeSnapshot", Name: "s"}
	kept := volumeAt("kept", "b")
	kept.Spec.NodeAffinity = locality.Affinity("b")
	kept.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: locality.Driver}
	for _, c := range []struct {
		name  string
		claim *corev1.PersistentVolumeClaim
		shelf shelf
		// why the pod, and the nodes a and b, are refused
		pod, a, b string
	}{
		{"no claim", nil, shelf{}, `persistentvolumeclaim "data" not found`, "", ""},
		{"bound", storageClaim("pv", true), shelf{volumes: []*corev1.PersistentVolume{volumeAt("pv", "a")}},
			"", "", volumeElsewhere},
		{"volume gone", storageClaim("pv", true), shelf{}, "", volumeMissing, volumeMissing},
		{"immediate", storageClaim("", false), shelf{classes: storageClass("p", storagev1.VolumeBindingImmediate)},
			unboundImmediate, "", ""},
		{"half bound", storageClaim("pv", false), shelf{classes: storageClass("p", waits)}, unboundImmediate, "", ""},
		{"a volume at a", storageClaim("", false),
			shelf{classes: storageClass(noProvisioner, waits),
				volumes: []*corev1.PersistentVolume{volumeAt("pv", "a")}}, "", "", noVolume},
		{"provisioned", storageClaim("", false), shelf{classes: storageClass("p", waits)}, "", "", ""},
		{"topology", storageClaim("", false), shelf{classes: zoned}, "", noVolume, ""},
		{"node chosen", chosen, shelf{classes: storageClass("p", waits)}, "", noVolume, ""},
		{"room at b", storageClaim("", false),
			shelf{classes: storageClass("p", waits), reported: true, capacities: room("5Gi", "b")},
			"", volumeTooLarge, ""},
		{"no room", storageClaim("", false),
			shelf{classes: storageClass("p", waits), reported: true, capacities: room("4Gi", "b")},
			"", volumeTooLarge, volumeTooLarge},
		{"clone", clone, shelf{classes: storageClass(locality.Driver, waits),
			volumes: []*corev1.PersistentVolume{kept}}, "", sourceElsewhere, ""},
		{"clone of nothing yet", clone, shelf{classes: storageClass(locality.Driver, waits)},
			"", sourceElsewhere, sourceElsewhere},
		{"of a snapshot", restored, shelf{classes: storageClass(locality.Driver, waits),
			snapshots: map[string]string{"s": "b"}}, "", sourceElsewhere, ""},
		{"of a snapshot that is anywhere", restored, shelf{classes: storageClass(locality.Driver, waits)}, "", "", ""},
		{"of another driver's snapshot", restored, shelf{classes: storageClass("p", waits),
			snapshots: map[string]string{"s": "b"}}, "", "", ""},
		{"clone by another driver", clone, shelf{classes: storageClass("p", waits)}, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.claim != nil {
				c.shelf.claims = map[string]*corev1.PersistentVolumeClaim{"data": c.claim, "source": source}
			}
			p, err := newVolumeBinding(nil, &Deps{Storage: &c.shelf})
			if err != nil {
				t.Fatal(err)
			}
			pod, err := framework.NewPodInfo(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "p"},
				Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			f, _, st := p.(*volumeBinding).PreFilter(pod, nil)
			if got := st.Message(); got != c.pod {
				t.Fatalf("got %q", got)
			}
			if f == nil {
				return
			}
			for node, want := range map[string]string{"a": c.a, "b": c.b} {
				n := &framework.NodeInfo{
					Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"host": node}}}}
				if got := f.Filter(n).Message(); got != want {
					t.Errorf("%s: got %q, want %q", node, got, want)
				}
			}
		})
	}
}

// A volume chosen for one pod is not chosen for another, until the first lets go.
func TestVolumeBindingReserves(t *testing.T) {
	s := &shelf{
		classes: storageClass(noProvisioner, storagev1.VolumeBindingWaitForFirstConsumer),
		volumes: []*corev1.PersistentVolume{volumeAt("pv", "a")},
		claims:  map[string]*corev1.PersistentVolumeClaim{"one": storageClaim("", false), "two": storageClaim("", false)},
	}
	s.claims["one"].UID, s.claims["two"].UID = "1", "2"
	plugin, err := newVolumeBinding(nil, &Deps{Storage: s})
	if err != nil {
		t.Fatal(err)
	}
	b := plugin.(*volumeBinding)
	node := &framework.NodeInfo{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"host": "a"}}}}
	try := func(claim string) (*framework.PodInfo, framework.NodeFilter, string) {
		pod := &framework.PodInfo{Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "ns", UID: "p" + s.claims[claim].UID},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}},
		}}
		f, _, st := b.PreFilter(pod, nil)
		if st == nil {
			st = f.Filter(node)
		}
		return pod, f, st.Message()
	}
	first, judged, why := try("one")
	if why != "" {
		t.Fatalf("got %q", why)
	}
	if _, _, why := try("two"); why != "" { // another cycle between the two
		t.Fatalf("got %q", why)
	}
	if st := b.Reserve(t.Context(), first, "a", judged); !st.OK() {
		t.Fatal(st.Message())
	}
	if _, _, why := try("two"); why != noVolume {
		t.Errorf("a volume is chosen twice: %q", why)
	}
	if _, _, why := try("one"); why != unboundImmediate {
		t.Errorf("a claim is bound twice: %q", why)
	}
	b.Unreserve(t.Context(), first, "a")
	b.Unreserve(t.Context(), first, "a")
	if _, _, why := try("two"); why != "" {
		t.Errorf("the volume is not free again: %q", why)
	}
}

// A driver that has no room at the chosen node gives the claim back: the pod is placed
// anew. What the cache shows from before the choice says nothing.
func TestVolumeBindingGivenBack(t *testing.T) {
	old := storageClaim("", false)
	old.ResourceVersion = "10"
	chosen := old.DeepCopy()
	chosen.ResourceVersion = "12"
	chosen.Annotations = map[string]string{storagehelper.AnnSelectedNode: "a"}
	back := old.DeepCopy()
	back.ResourceVersion = "14"
	done := storageClaim("pv", true)
	for _, c := range []struct {
		name  string
		shows []*corev1.PersistentVolumeClaim // one after the other
		want  string
	}{
		{"made", []*corev1.PersistentVolumeClaim{old, chosen, done}, ""},
		{"given back", []*corev1.PersistentVolumeClaim{old, chosen, back}, `provisioning failed for PVC "data"`},
		{"given back unseen", []*corev1.PersistentVolumeClaim{old, back}, `provisioning failed for PVC "data"`},
		{"made too late", []*corev1.PersistentVolumeClaim{chosen}, `persistentvolumeclaim "data" is not bound: context deadline exceeded`},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &volumeBinding{storage: &changing{shows: c.shows}, wait: 5 * time.Second}
			began := time.Now()
			err := b.await(t.Context(), []*corev1.PersistentVolumeClaim{old}, map[types.UID]string{"c": "12"}, "a")
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != c.want || time.Since(began) > 5*time.Second {
				t.Errorf("%s: %q after %s, want %q", c.name, got, time.Since(began), c.want)
			}
		})
	}
}

// changing shows another state of a claim each time, and the last again and again.
type changing struct {
	shelf
	shows []*corev1.PersistentVolumeClaim
}

func (s *changing) Claim(string, string) (*corev1.PersistentVolumeClaim, error) {
	c := s.shows[0]
	if len(s.shows) > 1 {
		s.shows = s.shows[1:]
	}
	return c, nil
}
