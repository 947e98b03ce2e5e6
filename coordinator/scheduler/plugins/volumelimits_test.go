package plugins

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// driven is a shelf of claims c0..cN that are bound to volumes of a driver; the claim
// new is not bound yet, and will be the driver's.
func driven(n int) *shelf {
	s := &shelf{claims: map[string]*corev1.PersistentVolumeClaim{"new": storageClaim("", false)},
		classes: storageClass("d", storagev1.VolumeBindingWaitForFirstConsumer)}
	for i := range n {
		name := fmt.Sprint("c", i)
		s.claims[name] = storageClaim("pv-"+name, true)
		s.claims[name].Name = name
		pv := volumeAt("pv-"+name, "a")
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: name}
		s.volumes = append(s.volumes, pv)
	}
	s.claims["new"].Name = "new"
	return s
}

// claimant is a pod with claims.
func claimant(name string, claims ...string) *framework.PodInfo {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
	}
	return &framework.PodInfo{Pod: p}
}

func nodeWith(name string, labels map[string]string, pods ...*framework.PodInfo) *framework.NodeInfo {
	n := framework.NewNodeInfo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	for _, p := range pods {
		n.AddPod(p)
	}
	return n
}

// TestVolumeLimits covers LIM-1, LIM-4.
func TestVolumeLimits(t *testing.T) {
	attached := func(node, volume string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}}}
	}
	const full = "node(s) exceed max volume count"
	for _, c := range []struct {
		name        string
		limits      map[string]int64
		there       []*framework.PodInfo
		attachments []*storagev1.VolumeAttachment
		pod         *framework.PodInfo
		want        string
	}{
		{name: "no limit", pod: claimant("p", "c0", "c1", "c2")},
		{name: "another driver's", limits: map[string]int64{"e": 0}, pod: claimant("p", "c0", "c1", "c2")},
		{name: "room", limits: map[string]int64{"d": 2}, there: []*framework.PodInfo{claimant("a", "c0")},
			pod: claimant("p", "c1")},
		{name: "full", limits: map[string]int64{"d": 2}, there: []*framework.PodInfo{claimant("a", "c0", "c1")},
			pod: claimant("p", "c2"), want: full},
		{name: "there already", limits: map[string]int64{"d": 2},
			there: []*framework.PodInfo{claimant("a", "c0", "c1"), claimant("b", "c1")}, pod: claimant("p", "c1")},
		{name: "to be made", limits: map[string]int64{"d": 1}, there: []*framework.PodInfo{claimant("a", "c0")},
			pod: claimant("p", "new"), want: full},
		{name: "still attached", limits: map[string]int64{"d": 1}, pod: claimant("p", "c1"),
			attachments: []*storagev1.VolumeAttachment{attached("n", "pv-c0")}, want: full},
		{name: "attached elsewhere", limits: map[string]int64{"d": 1}, pod: claimant("p", "c1"),
			attachments: []*storagev1.VolumeAttachment{attached("m", "pv-c0")}},
		{name: "attached is its own", limits: map[string]int64{"d": 1}, pod: claimant("p", "c0"),
			attachments: []*storagev1.VolumeAttachment{attached("n", "pv-c0")}},
		{name: "of a volume that is gone", limits: map[string]int64{"d": 1}, pod: claimant("p", "c1"),
			attachments: []*storagev1.VolumeAttachment{attached("n", "gone")}, want: full},
		{name: "without claims", limits: map[string]int64{"d": 0}, pod: claimant("p")},
		{name: "claim missing", limits: map[string]int64{"d": 0}, pod: claimant("p", "missing")},
	} {
		s := driven(3)
		s.limits, s.attachments = map[string]map[string]int64{"n": c.limits}, c.attachments
		f, _, st := (&volumeLimits{s}).PreFilter(c.pod, nil)
		if f != nil {
			st = f.Filter(nodeWith("n", nil, c.there...))
		}
		if got := st.Message(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A class of a plugin that a driver has taken over counts as the driver's (LIM-5).
func TestVolumeLimitsOfACloud(t *testing.T) {
	s := driven(0)
	s.classes["x"].Provisioner = "kubernetes.io/aws-ebs"
	s.limits = map[string]map[string]int64{"n": {"ebs.csi.aws.com": 0}}
	f, _, _ := (&volumeLimits{s}).PreFilter(claimant("p", "new"), nil)
	if f == nil || f.Filter(nodeWith("n", nil)) != tooManyVolumes {
		t.Error("the driver's limit does not count")
	}
}

// A claim for one pod alone keeps a second pod from every node, until the first is
// taken away (KEP-2485).
func TestClaimForOnePod(t *testing.T) {
	s := driven(2)
	s.claims["c0"].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	r := &volumeRestrictions{s}
	f, _, _ := r.PreFilter(claimant("p", "c0", "c1"), nil)
	tracker, ok := f.(framework.Tracker)
	if !ok {
		t.Fatalf("%T counts nothing", f)
	}
	other := claimant("q", "c0")
	other.Pod.Namespace = "elsewhere"
	empty, busy := nodeWith("a", nil), nodeWith("b", nil, claimant("user", "c0"), claimant("shared", "c1"), other)
	tracker.Track(0, empty)
	tracker.Track(1, busy)
	for _, n := range []*framework.NodeInfo{empty, busy} {
		if got := f.Filter(n); got != claimTaken {
			t.Errorf("%s: %q", n.Name(), got.Message())
		}
	}
	without := busy.Clone()
	without.RemovePod("user")
	tracker.Track(1, without)
	if got := f.Filter(without).Message(); got != "" {
		t.Errorf("without the other pod: %q", got)
	}
	tracker.Track(1, busy)
	if got := f.Filter(empty); got != claimTaken {
		t.Errorf("the question left a trace: %q", got.Message())
	}
	tracker.Track(1, nil)
	if got := f.Filter(empty).Message(); got != "" {
		t.Errorf("the node is gone: %q", got)
	}
	if f, _, _ := r.PreFilter(claimant("p", "c1"), nil); f != nil {
		t.Errorf("a claim that may be shared: %T", f)
	}
}

// Disks of clouds and networks that nobody may mount twice.
func TestDisks(t *testing.T) {
	gce := func(name string, ro bool) corev1.VolumeSource {
		return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: ro}}
	}
	aws := corev1.VolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "v", ReadOnly: true}}
	iscsi := func(iqn string) corev1.VolumeSource {
		return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: iqn}}
	}
	rbd := func(monitors ...string) corev1.VolumeSource {
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: monitors, RBDPool: "p", RBDImage: "i"}}
	}
	for _, c := range []struct {
		name       string
		pod, other corev1.VolumeSource
		want       string
	}{
		{name: "same", pod: gce("a", false), other: gce("a", true), want: "node(s) had no available disk"},
		{name: "both read", pod: gce("a", true), other: gce("a", true)},
		{name: "another", pod: gce("a", false), other: gce("b", false)},
		{name: "EBS", pod: aws, other: aws, want: "node(s) had no available disk"},
		{name: "target", pod: iscsi("q"), other: iscsi("q"), want: "node(s) had no available disk"},
		{name: "another target", pod: iscsi("q"), other: iscsi("r")},
		{name: "same cluster", pod: rbd("x", "y"), other: rbd("y", "z"), want: "node(s) had no available disk"},
		{name: "another cluster", pod: rbd("x"), other: rbd("y")},
		{name: "kinds differ", pod: gce("a", false), other: iscsi("a")},
	} {
		pod, other := claimant("p"), claimant("q")
		pod.Pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.pod}}
		other.Pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.other}}
		f, _, _ := (&volumeRestrictions{}).PreFilter(pod, nil)
		if got := f.Filter(nodeWith("n", nil, other)).Message(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		freed := volumeFreed(pod.Pod, framework.Event{Old: at("n", other.Pod)})
		if freed != framework.Hint(c.want != "") {
			t.Errorf("%s: the other pod goes: %v", c.name, freed)
		}
	}
}

func at(node string, p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeName = node
	return p
}

func TestVolumeZone(t *testing.T) {
	const zone, region = corev1.LabelTopologyZone, corev1.LabelTopologyRegion
	const oldZone = corev1.LabelFailureDomainBetaZone
	const refused = "node(s) had no available volume zone"
	for _, c := range []struct {
		name         string
		volume, node map[string]string
		want         string
	}{
		{name: "anywhere", node: map[string]string{zone: "a"}},
		{name: "same", volume: map[string]string{zone: "a"}, node: map[string]string{zone: "a"}},
		{name: "another", volume: map[string]string{zone: "a"}, node: map[string]string{zone: "b"}, want: refused},
		{name: "one of several", volume: map[string]string{zone: "a__b"}, node: map[string]string{zone: "b"}},
		{name: "older name", volume: map[string]string{oldZone: "a"}, node: map[string]string{zone: "a"}},
		{name: "region", volume: map[string]string{zone: "a", region: "r"}, node: map[string]string{zone: "a"},
			want: refused},
		{name: "a node without labels", volume: map[string]string{zone: "a"}, node: map[string]string{"x": "y"}},
	} {
		s := driven(1)
		s.volumes[0].Labels = c.volume
		f, _, st := (&volumeZone{s}).PreFilter(claimant("p", "c0", "new", "missing"), nil)
		if f != nil {
			st = f.Filter(nodeWith("n", c.node))
		}
		if got := st.Message(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
