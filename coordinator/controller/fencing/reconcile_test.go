package fencing

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/coordinator/controller"
)

// rig is the controller on an API that only stores.
type rig struct {
	t      *testing.T
	client *fake.Clientset
	events *record.FakeRecorder
	end    func()
	newer  atomic.Pointer[coordinationv1.Lease] // what the API has, and informers do not
	voters sync.Map                             // who answers: that it refuses
}

// ask is what other nodes say.
func (f *rig) ask(_ context.Context, member string, question []byte) ([]byte, error) {
	if _, ok := f.voters.Load(member); !ok {
		return nil, errors.New("not reached")
	}
	return fence.NewVoter().Answer("coordinator:c", true, question), nil
}

func pod(name string, policy fence.Policy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: "uid-1", ResourceVersion: "1",
			Annotations: map[string]string{fence.PolicyAnnotation: string(policy)}},
		Spec: corev1.PodSpec{NodeName: "n"},
	}
}

func start(t *testing.T, objects ...runtime.Object) *rig {
	others := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Status: nodeOf("True").Status},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: nodeOf("Unknown").Status},
	}
	f := &rig{t: t, client: fake.NewClientset(append(others, objects...)...), events: record.NewFakeRecorder(100)}
	f.client.PrependReactor("delete", "pods", f.deletePod)
	f.client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		l := f.newer.Load()
		return l != nil, l, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(f.client, 0)
	loop, err := New(controller.Env{
		Client:    f.client,
		Informers: factory,
		Recorder:  func(string) record.EventRecorder { return f.events },
		Log:       slog.New(slog.DiscardHandler),
	}, f.ask)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	f.end = func() { cancel(); running.Wait(); factory.Shutdown() }
	return f
}

// deletePod refuses what the API would.
func (f *rig) deletePod(a clienttesting.Action) (bool, runtime.Object, error) {
	d := a.(clienttesting.DeleteActionImpl)
	obj, err := f.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), d.Namespace, d.Name)
	if err != nil {
		return true, nil, err
	}
	p, want := obj.(*corev1.Pod), d.DeleteOptions.Preconditions
	if want == nil || want.UID == nil || want.ResourceVersion == nil || d.DeleteOptions.GracePeriodSeconds == nil ||
		*d.DeleteOptions.GracePeriodSeconds != 0 {
		f.t.Errorf("deletes %+v: not by force, or any version", d.DeleteOptions)
	}
	if *want.UID != p.UID || *want.ResourceVersion != p.ResourceVersion {
		return true, nil, apierrors.NewConflict(corev1.Resource("pods"), d.Name, errors.New("another version"))
	}
	return false, nil, nil
}

func (f *rig) lease() *coordinationv1.Lease {
	f.t.Helper()
	l, err := f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(f.t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

func (f *rig) annotate(key, value string) {
	f.t.Helper()
	l := f.lease()
	l.Annotations[key] = value
	_, err := f.client.CoordinationV1().Leases(l.Namespace).Update(f.t.Context(), l, metav1.UpdateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

// back has the node be heard of again.
func (f *rig) back() {
	f.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: nodeOf("True").Status}
	if _, err := f.client.CoreV1().Nodes().UpdateStatus(f.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f *rig) has(name string) bool {
	f.t.Helper()
	_, err := f.client.CoreV1().Pods("d").Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		f.t.Fatal(err)
	}
	return err == nil
}

func covered() *coordinationv1.Lease {
	l := leaseOf(10 * time.Second)
	l.Name, l.Namespace = "n", corev1.NamespaceNodeLease
	return l
}

func TestALostNodesPodsAreReplacedWhenTheyMustHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, covered(), pod("stop", fence.Stop), pod("stay", fence.Stay), pod("twice", fence.StopIfReplaced))
		defer func() { f.end() }()
		time.Sleep(silence + time.Millisecond)
		synctest.Wait()
		if f.lease().Annotations[fence.Raised] == "" {
			t.Fatal("no fence is raised")
		}
		if !f.has("stop") || f.has("twice") {
			t.Error("at once only what may run twice is replaced")
		}
		time.Sleep(fence.Wait(10*time.Second) - 2*time.Millisecond)
		synctest.Wait()
		if !f.has("stop") {
			t.Fatal("replaced too soon")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if f.has("stop") || !f.has("stay") {
			t.Errorf("stop: %v, stay: %v", f.has("stop"), f.has("stay"))
		}
	})
}

// held is a Lease of a node for which a, b and c may vouch.
func held(pairs ...string) *coordinationv1.Lease {
	l := leaseOf(0, pairs...)
	l.Name, l.Namespace = "n", corev1.NamespaceNodeLease
	fence.SetCovered(l, 10*time.Second, "a", "b", "c")
	return l
}

// Where others may vouch for a node, its pods are replaced when enough have refused that.
func TestOthersRefuseANodeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, held(), pod("stop", fence.Stop))
		defer func() { f.end() }()
		f.voters.Store("b", true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.lease().Annotations[fence.Raised] == "" {
			t.Fatal("no fence is raised")
		}
		if !f.has("stop") {
			t.Fatal("replaced while others may vouch for its node")
		}
		told := 0
		for len(f.events.Events) > 0 {
			if strings.Contains(<-f.events.Events, "NotFenced") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("told %d times why it waits", told)
		}
		f.voters.Store("c", true)
		time.Sleep(fence.Wait(10*time.Second) - time.Millisecond)
		synctest.Wait()
		if !f.has("stop") {
			t.Fatal("replaced too soon after they refused")
		}
		time.Sleep(refuseAgain + 2*time.Millisecond)
		synctest.Wait()
		if f.has("stop") {
			t.Error("not replaced")
		}
	})
}

// With all there it takes no longer than without.
func TestRefusalsTakeNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, held(), pod("stop", fence.Stop))
		defer func() { f.end() }()
		for _, v := range []string{"a", "b", "c"} {
			f.voters.Store(v, true)
		}
		time.Sleep(silence + fence.Wait(10*time.Second) + 3*time.Millisecond)
		synctest.Wait()
		if f.has("stop") {
			t.Error("not replaced")
		}
	})
}

// Other voters on the Lease, or none any more, have everything begin anew.
func TestOtherVotersBeginAnew(t *testing.T) {
	for name, voters := range map[string][]string{"others": {"d"}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, held(fence.Raised, "10s-x"), pod("stop", fence.Stop))
				defer func() { f.end() }()
				for _, v := range []string{"a", "b", "c", "d"} {
					f.voters.Store(v, true)
				}
				time.Sleep(fence.Wait(10*time.Second) - time.Second)
				synctest.Wait()
				l := f.lease()
				fence.SetCovered(l, 10*time.Second, voters...)
				_, err := f.client.CoordinationV1().Leases(l.Namespace).Update(t.Context(), l, metav1.UpdateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(fence.Wait(10*time.Second) - time.Millisecond)
				synctest.Wait()
				if !f.has("stop") {
					t.Fatal("replaced too soon")
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if f.has("stop") {
					t.Error("not replaced")
				}
			})
		})
	}
}

// A leader of which nobody knows since when it has been waiting begins anew.
func TestANewLeaderWaitsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := covered()
		l.Annotations[fence.Raised] = "10s-x"
		f := start(t, l, pod("stop", fence.Stop))
		defer func() { f.end() }()
		time.Sleep(fence.Wait(10*time.Second) - time.Millisecond)
		synctest.Wait()
		if !f.has("stop") {
			t.Fatal("replaced too soon")
		}
		time.Sleep(time.Second) // it looks when its informers have begun
		synctest.Wait()
		if f.has("stop") {
			t.Error("not replaced")
		}
	})
}

func TestANodeThatStoppedItsPodsHasThemBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := covered()
		l.Annotations[fence.Raised] = "10s-x"
		f := start(t, l, pod("stop", fence.Stop))
		defer func() { f.end() }()
		synctest.Wait()
		f.back()
		f.annotate(fence.Stopped, "10s-x")
		time.Sleep(time.Minute)
		synctest.Wait()
		if a := f.lease().Annotations; a[fence.Raised] != "" || a[fence.Lifting] != "" || a[fence.Stopped] != "" {
			t.Errorf("the fence is not lifted: %v", a)
		}
		p, err := f.client.CoreV1().Pods("d").Get(t.Context(), "stop", metav1.GetOptions{})
		if err != nil || p.Annotations[survived] != "10s-x" {
			t.Errorf("%v: the pod was not written before the fence was lifted: %v", err, p.Annotations)
		}
	})
}

// An older agent renews without a word of the fence: its pods run, and are not replaced.
func TestANodeThatKnowsNoFencesKeepsItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := covered()
		l.Annotations[fence.Raised] = "10s-x"
		f := start(t, l, pod("stop", fence.Stop))
		defer func() { f.end() }()
		synctest.Wait()
		f.back()
		l = f.lease()
		renewed := metav1.NewMicroTime(l.Spec.RenewTime.Add(time.Second))
		l.Spec.RenewTime = &renewed
		_, err := f.client.CoordinationV1().Leases(l.Namespace).Update(t.Context(), l, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !f.has("stop") {
			t.Error("replaced while it runs")
		}
		if a := f.lease().Annotations; a[fence.Raised] != "" || a[fence.Lifting] != "" {
			t.Errorf("the fence is there for ever: %v", a)
		}
	})
}

// What the informers show may be old: the Lease itself tells that the agent knows no fences.
func TestTheLeaseItselfIsAskedWhetherItsAgentKnowsFences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := covered()
		l.Annotations[fence.Raised] = "10s-x"
		f := start(t, l, pod("stop", fence.Stop))
		defer func() { f.end() }()
		newer := covered()
		newer.Annotations = map[string]string{fence.Raised: "10s-x"}
		f.newer.Store(newer)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !f.has("stop") {
			t.Error("replaced while it runs")
		}
	})
}

func TestWhatIsToldOfAPodEndsWithIt(t *testing.T) {
	r := reconciler{told: map[types.UID]string{"uid-1": "why"}}
	r.podChanged(pod("stop", fence.Stop), nil)
	if len(r.told) != 0 {
		t.Errorf("%v is kept for ever", r.told)
	}
}

// stays is another pod, which nobody replaces.
func stays(p *corev1.Pod) *corev1.Pod {
	p.UID = "uid-2"
	delete(p.Annotations, fence.PolicyAnnotation)
	return p
}

func TestVolumes(t *testing.T) {
	no := false
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}}
	using := func(name string) *corev1.Pod {
		p := pod(name, fence.Stop)
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		return p
	}
	csi := func(driver string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}}
	}
	block := corev1.PersistentVolumeBlock
	forMany := corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}}
	deviceForMany := forMany
	deviceForMany.VolumeMode = &block
	nfs := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}
	iscsi := corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}
	ceph := corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{}}
	unknown := stays(using("o"))
	unknown.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "no-lister-has-it"
	for name, tt := range map[string]struct {
		source          corev1.PersistentVolumeSource
		spec            corev1.PersistentVolumeSpec // the rest of it
		promise         string
		policy          fence.Policy
		more            *corev1.Pod
		moves, detaches bool
	}{
		"attached":                     {source: csi("attaches"), moves: true, detaches: true},
		"attached-and-shared":          {source: csi("attaches"), more: stays(using("o")), moves: true},
		"of-a-driver-without":          {source: csi("plain")},
		"attached-and-perhaps-shared":  {source: csi("attaches"), more: unknown},
		"of-a-driver-without-promised": {source: csi("plain"), promise: "true", moves: true},
		"attached-for-many":            {source: csi("attaches"), spec: forMany, moves: true, detaches: true},
		"attached-for-many-and-shared": {source: csi("attaches"), spec: forMany, more: stays(using("o"))},
		"attached-for-many-and-shared-promised": {
			source: csi("attaches"), spec: forMany, promise: "true", more: stays(using("o")), moves: true},
		"device-for-many": {source: csi("attaches"), spec: deviceForMany},
		"device-for-many-promised": {
			source: csi("attaches"), spec: deviceForMany, promise: "true", moves: true, detaches: true},
		"nfs":          {source: nfs},
		"nfs-promised": {source: nfs, promise: "true", moves: true},
		"nfs-denied":   {source: nfs, promise: "false"},
		"nfs-twice":    {source: nfs, policy: fence.StopIfReplaced, moves: true},
		"iscsi":        {source: iscsi},
		"iscsi-twice":  {source: iscsi, policy: fence.StopIfReplaced},
		"directory":    {source: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}}},
		"local":        {source: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}}},
		"cephfs":       {source: ceph, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := covered()
				l.Annotations[fence.Raised] = "10s-x"
				va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{UID: "va",
					// sha256 of "h" + "attaches" + "n", as controller/attachdetach names it.
					Name: "csi-" + attachmentOfTest}}
				pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: tt.spec}
				pv.Spec.PersistentVolumeSource = tt.source
				pv.Annotations = map[string]string{writesEnd: tt.promise}
				p := using("p")
				if tt.policy != "" {
					p.Annotations[fence.PolicyAnnotation] = string(tt.policy)
				}
				objects := []runtime.Object{l, claim.DeepCopy(), p, va, pv,
					&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "plain"},
						Spec: storagev1.CSIDriverSpec{AttachRequired: &no}},
				}
				if tt.more != nil {
					objects = append(objects, tt.more)
				}
				f := start(t, objects...)
				defer func() { f.end() }()
				time.Sleep(fence.Wait(10*time.Second) + time.Second)
				synctest.Wait()
				_, err := f.client.StorageV1().VolumeAttachments().Get(t.Context(), va.Name, metav1.GetOptions{})
				if f.has("p") == tt.moves || apierrors.IsNotFound(err) != tt.detaches {
					t.Errorf("the pod is there: %v, its attachment: %v", f.has("p"), err)
				}
				if told := len(f.events.Events) > 0; !told && name != "attached-and-perhaps-shared" { // an error tells
					t.Error("nobody is told")
				}
			})
		})
	}
}

// Kinds that nobody has thought of stay too.
func TestVolumesOfAPodItself(t *testing.T) {
	own := map[string]bool{"EmptyDir": true, "ConfigMap": true, "Secret": true, "DownwardAPI": true, "Projected": true,
		"Image": true}
	claims := map[string]bool{"PersistentVolumeClaim": true, "Ephemeral": true} // their volume tells
	twice := map[string]bool{"NFS": true, "CephFS": true, "HostPath": true, "AzureFile": true, "Glusterfs": true}
	kinds := reflect.TypeFor[corev1.VolumeSource]()
	for i := range kinds.NumField() {
		kind := kinds.Field(i).Name
		if claims[kind] {
			continue
		}
		var source corev1.VolumeSource
		reflect.ValueOf(&source).Elem().Field(i).Set(reflect.New(kinds.Field(i).Type.Elem()))
		for _, tt := range []struct {
			policy  fence.Policy
			promise string
			moves   bool
		}{
			{fence.Stop, "", own[kind]},
			{fence.Stop, "true", true},
			{fence.StopIfReplaced, "", own[kind] || twice[kind]},
		} {
			p := pod("p", tt.policy)
			p.Annotations[writesEnd] = tt.promise
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
			if _, why, err := (volumes{}).of(p); err != nil || (why == "") != tt.moves {
				t.Errorf("%s of a pod with %s, promise %q: %q, %v", kind, tt.policy, tt.promise, why, err)
			}
		}
	}
}

const attachmentOfTest = "f6a1e4e9b811400cc0648bb8a189976ee48bf08e36ea52e6ac9b1200bed0138c"
