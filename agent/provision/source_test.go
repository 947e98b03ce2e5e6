package provision

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/locality"
)

type claimChange = func(*corev1.PersistentVolumeClaim)

func of(group, kind, name string) claimChange {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
		if group != "" {
			c.Spec.DataSource.APIGroup = &group
		}
	}
}

// block has a claim ask for a plain device.
func block(c *corev1.PersistentVolumeClaim) {
	mode := corev1.PersistentVolumeBlock
	c.Spec.VolumeMode = &mode
}

func size(s string) claimChange {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(s)
	}
}

// TestClones is what becomes of a claim whose volume is to be a copy of that of the
// claim old.
func TestClones(t *testing.T) {
	now := metav1.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for name, tt := range map[string]struct {
		claim  claimChange
		source claimChange
		volume func(*corev1.PersistentVolume)
		call   string
		says   string // in an event, that the volume is not made
		back   bool   // the claim has no node any more
	}{
		"clone":  {call: "create pvc-1 1073741824 of old"},
		"larger": {claim: size("2Gi"), call: "create pvc-1 2147483648 of old"},
		"by dataSourceRef": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSource = nil
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: claimKind, Name: "old"}
			},
			call: "create pvc-1 1073741824 of old",
		},
		"volume larger than its claim": {
			volume: func(pv *corev1.PersistentVolume) {
				pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("3Gi")
			},
			call: "create pvc-1 1073741824 of old",
		},
		"claim of no node": {
			source: func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil },
			call:   "create pvc-1 1073741824 of old",
		},
		"smaller": {claim: size("512Mi"), says: "requested 536870912 but source is 1073741824"},
		"smaller than the volume of a claim of no node": {
			claim: size("2Gi"), source: func(c *corev1.PersistentVolumeClaim) { c.UID = "another" },
			volume: func(pv *corev1.PersistentVolume) {
				pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("3Gi")
			},
			says: "requested 2147483648 but source is 3221225472",
		},
		"other mode": {claim: block, says: "Source is Filesystem, but new PVC requested Block"},
		"both plain": {
			claim:  block,
			volume: func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = blockMode() },
			call:   "create pvc-1 1073741824 of old",
		},
		"not bound yet": {
			volume: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumePending },
			says:   "the PVC DataSource old must have a status of Bound: its volume pvc-old is Pending",
		},
		"being deleted": {
			source: func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp, c.Finalizers = &now, []string{"x"} },
			says:   "the PVC DataSource old is currently being deleted",
		},
		"released": {
			volume: func(pv *corev1.PersistentVolume) {
				pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, "Retain"
			},
			says: "claim old has no volume of driver local.shoal-project.io on node n1",
			back: true,
		},
		"on another node": {
			volume: func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = locality.Affinity("n2") },
			says:   "claim old has no volume of driver local.shoal-project.io on node n1",
			back:   true,
		},
		"of another namespace": {
			volume: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "other" },
			says:   "claim old has no volume",
			back:   true,
		},
		"across namespaces": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				other := "other"
				c.Spec.DataSource = nil
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: claimKind, Name: "old", Namespace: &other}
			},
			says: "remove spec.dataSourceRef.namespace",
		},
		"of a populator":    {claim: of("x.example.com", "Backup", "old"), says: "Assuming an external populator"},
		"of nothing":        {claim: of("", claimKind, ""), says: "the PVC source not found for PVC data"},
		"of an older group": {claim: of("x.example.com", snapshotKind, "s"), says: "does not belong to the right APIGroup"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := claim(func(c *corev1.PersistentVolumeClaim) {
					c.Name, c.UID, c.Spec.VolumeName, c.Status.Phase = "old", "old", "pvc-old", corev1.ClaimBound
					c.Status.Capacity = c.Spec.Resources.Requests
				})
				pv := newVolume(source, class(), csi.Create{Name: "pvc-old", Bytes: gib}, csi.Created{Handle: "old"}, "n1")
				pv.Status.Phase = corev1.VolumeBound
				if tt.source != nil {
					tt.source(source)
				}
				if tt.volume != nil {
					tt.volume(pv)
				}
				c := claim(of("", claimKind, "old"))
				if tt.claim != nil {
					tt.claim(c)
				}
				// The claim comes when the rest is known: the order of watches is nobody's.
				n := start(t, source, pv)
				n.add(t, c)
				n.check(t, tt.call, tt.says, tt.back)
			})
		})
	}
}

func blockMode() *corev1.PersistentVolumeMode {
	mode := corev1.PersistentVolumeBlock
	return &mode
}

// TestClonesLater has a claim that is there before its source's volume is bound.
func TestClonesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := claim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID, c.Spec.VolumeName = "old", "old", "pvc-old" })
		pv := newVolume(source, class(), csi.Create{Name: "pvc-old"}, csi.Created{Handle: "old"}, "n1")
		n := start(t, source, pv)
		n.add(t, claim(of("", claimKind, "old")))
		n.check(t, "", "must have a status of Bound", false)
		pv.Status.Phase = corev1.VolumeBound
		if _, err := n.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lastPause)
		synctest.Wait()
		if got := n.said(); !slices.Equal(got, []string{"create pvc-1 1073741824 of old"}) {
			t.Errorf("calls %q", got)
		}
	})
}

// A snapshot of a file system, what the controller knows of it, and where they are.
const (
	snapshotPath = "/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots/s"
	contentPath  = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c"
	taken        = `{"metadata": {"namespace": "ns", "name": "s", "uid": "s-uid"},
		"status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "1Gi"}}`
	stored = `{"metadata": {"name": "c", "labels": {"snapshot.storage.kubernetes.io/managed-by": "n1"}},
		"spec": {"driver": "local.shoal-project.io", "sourceVolumeMode": "Filesystem",
			"volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "s-uid"}},
		"status": {"snapshotHandle": "snapshot-1"}}`
)

// modeAllowed has a snapshot's content allow that a volume of another mode is made of it.
var modeAllowed = [2]string{`"labels"`,
	`"annotations": {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"}, "labels"`}

// TestModeIsAllowedLater has a claim that is there before its mode is allowed.
func TestModeIsAllowedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startWith(t, map[string]string{snapshotPath: taken, contentPath: stored})
		c := claim(of(snapshotGroup, snapshotKind, "s"))
		block(c)
		n.add(t, c)
		n.check(t, "", "modifies the mode of the source volume but does not have permission", false)
		n.mu.Lock()
		n.extensions[contentPath] = replaced(stored, modeAllowed)
		n.mu.Unlock()
		time.Sleep(2 * lastPause)
		synctest.Wait()
		if got := n.said(); !slices.Equal(got, []string{"create pvc-1 1073741824 of snapshot-1"}) {
			t.Errorf("calls %q", got)
		}
	})
}

// TestRestores is what becomes of a claim whose volume is to be made of a snapshot.
func TestRestores(t *testing.T) {
	for name, tt := range map[string]struct {
		snapshot, content [2]string // what is replaced, by what
		claim             claimChange
		err               error // of the driver
		call, says        string
		back              bool
	}{
		"restore": {call: "create pvc-1 1073741824 of snapshot-1"},
		"larger":  {claim: size("2Gi"), call: "create pvc-1 2147483648 of snapshot-1"},
		"no size": {snapshot: [2]string{`, "restoreSize": "1Gi"`}, claim: size("1Mi"),
			call: "create pvc-1 1048576 of snapshot-1"},
		"no label": {content: [2]string{`"snapshot.storage.kubernetes.io/managed-by": "n1"`},
			call: "create pvc-1 1073741824 of snapshot-1"},
		"no label, not here": {content: [2]string{`"snapshot.storage.kubernetes.io/managed-by": "n1"`},
			err:  status.Error(codes.NotFound, "no such snapshot"),
			call: "create pvc-1 1073741824 of snapshot-1; delete pvc-1",
			says: "have the claim's pod run on the node of the snapshot's source", back: true},
		"other node": {content: [2]string{`"n1"`, `"n2"`}, says: "snapshot s is on node n2: have the claim's pod run there",
			back: true},
		"smaller": {claim: size("512Mi"),
			says: "requested volume size 536870912 is less than the size 1073741824 for the source snapshot s"},
		"not ready":  {snapshot: [2]string{"true", "false"}, says: "snapshot s is not Ready"},
		"not bound":  {snapshot: [2]string{`"c"`, `""`}, says: "snapshot s not bound"},
		"no status":  {snapshot: [2]string{"status", "other"}, says: "snapshot s not bound"},
		"no handle":  {content: [2]string{`"snapshot-1"`, `""`}, says: "snapshot handle s is not available"},
		"no object":  {claim: of(snapshotGroup, snapshotKind, "x"), says: "error getting snapshot x from api server"},
		"no content": {snapshot: [2]string{`"c"`, `"x"`}, says: "error getting snapshotcontent x for snapshot s"},
		"bound to another": {content: [2]string{"s-uid", "t-uid"},
			says: "snapshotcontent c for snapshot s is bound to a different snapshot"},
		"other driver": {content: [2]string{"local.shoal-project.io", "x.example.com"},
			says: "is not handled by CSI driver of StorageClass local: by x.example.com"},
		"ends": {snapshot: [2]string{`"uid"`, `"deletionTimestamp": "2026-01-01T00:00:00Z", "uid"`},
			says: "snapshot s is being deleted"},
		"other mode": {claim: block, says: "modifies the mode of the source volume but does not have permission"},
		"other mode, refused": {claim: block, content: [2]string{`"labels"`,
			`"annotations": {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "false"}, "labels"`},
			says: "modifies the mode of the source volume but does not have permission"},
		"other mode, allowed": {claim: block, content: modeAllowed, call: "create pvc-1 1073741824 of snapshot-1"},
		"mode not known": {claim: block, content: [2]string{`"sourceVolumeMode": "Filesystem",`},
			call: "create pvc-1 1073741824 of snapshot-1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := startWith(t, map[string]string{
					snapshotPath: replaced(taken, tt.snapshot),
					contentPath:  replaced(stored, tt.content),
				})
				n.driver.mu.Lock()
				n.err = tt.err
				n.driver.mu.Unlock()
				c := claim(of(snapshotGroup, snapshotKind, "s"))
				if tt.claim != nil {
					tt.claim(c)
				}
				n.add(t, c)
				n.check(t, tt.call, tt.says, tt.back)
			})
		})
	}
}

func replaced(s string, by [2]string) string {
	if by[0] == "" {
		return s
	}
	if !strings.Contains(s, by[0]) {
		panic(fmt.Sprintf("%q has no %q", s, by[0]))
	}
	return strings.Replace(s, by[0], by[1], 1)
}

func (n *node) add(t *testing.T, c *corev1.PersistentVolumeClaim) {
	t.Helper()
	if _, err := n.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// check looks for the driver's one call, an event, and whether the claim has its node.
func (n *node) check(t *testing.T, call, says string, back bool) {
	t.Helper()
	if got := strings.Join(n.said(), "; "); got != call {
		t.Errorf("calls %q, want %q", got, call)
	}
	if made := n.told("ProvisioningSucceeded"); made != (says == "") || !n.told(says) {
		t.Errorf("events %q, want %q", n.events, says)
	}
	if _, ok := n.claim(t).Annotations["volume.kubernetes.io/selected-node"]; ok == back {
		t.Errorf("the claim was given back: %t, want %t", !ok, back)
	}
}
