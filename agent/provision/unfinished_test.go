package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/locality"
)

// memory is Records in memory.
type memory struct {
	mu   sync.Mutex
	kept map[string]Unfinished
}

func (m *memory) All() (map[string]*Unfinished, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]*Unfinished{}
	for name, u := range m.kept {
		out[name] = &u
	}
	return out, nil
}

func (m *memory) PutNow(name string, u *Unfinished) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[string]Unfinished{}
	}
	m.kept[name] = *u
	return nil
}

func (m *memory) Delete(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, name)
	return nil
}

func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.kept))
}

// life is one agent's, which is killed before a step that lasts: from then on it
// changes nothing any more.
type life struct {
	*driver
	*memory
	mu    sync.Mutex
	ends  int // before which step, from 1; 0 for never
	steps []string
}

var errKilled = errors.New("the agent was killed")

func (l *life) step(format string, args ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends > 0 && len(l.steps)+1 >= l.ends {
		return errKilled
	}
	l.steps = append(l.steps, fmt.Sprintf(format, args...))
	return nil
}

func (l *life) Create(ctx context.Context, v csi.Create) (csi.Created, error) {
	if err := l.step("CreateVolume"); err != nil {
		return csi.Created{}, err
	}
	return l.driver.Create(ctx, v)
}

// deletion and record are of the two types that life is made of.
type deletion struct{ *life }

func (l deletion) Delete(ctx context.Context, volume string) error {
	if err := l.step("DeleteVolume"); err != nil {
		return err
	}
	return l.driver.Delete(ctx, volume)
}

type record struct{ *life }

func (l record) PutNow(name string, u *Unfinished) error {
	if err := l.step("record %s, made: %t", name, u.Volume != nil); err != nil {
		return err
	}
	return l.memory.PutNow(name, u)
}

func (l record) Delete(name string) error {
	if err := l.step("forget %s", name); err != nil {
		return err
	}
	return l.memory.Delete(name)
}

// disk is what outlives agents: volumes, records and the API.
type disk struct {
	api     *fake.Clientset
	driver  *driver
	records *memory
	mu      sync.Mutex
	running *life // whose requests are counted
}

func newDisk(objects ...runtime.Object) *disk {
	d := &disk{api: fake.NewClientset(objects...), records: &memory{},
		driver: &driver{room: 10 * gib, volumes: map[string]int64{}}}
	d.api.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.running == nil {
			return false, nil, nil
		}
		err := d.running.step("create PersistentVolume")
		return err != nil, nil, err
	})
	return d
}

// run is the life of an agent until all is quiet, with what happens meanwhile.
func (d *disk) run(ends int, meanwhile ...func()) *life {
	l := &life{driver: d.driver, memory: d.records, ends: ends}
	d.mu.Lock()
	d.running = l
	d.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Provisioner{
		Client:  d.api,
		Node:    "n1",
		Driver:  deletion{l},
		Records: record{l},
		NodeUID: func() types.UID { return "n-uid" },
		Event:   func(*corev1.ObjectReference, string, string, string) {},
		Log:     slog.New(slog.DiscardHandler),
	}
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) }) // it has no error
	synctest.Wait()
	for _, f := range meanwhile {
		f()
		synctest.Wait()
	}
	cancel()
	running.Wait()
	d.mu.Lock()
	d.running = nil
	d.mu.Unlock()
	return l
}

func (d *disk) deleteClaim(t *testing.T) {
	t.Helper()
	err := d.api.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "data", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// release does what the coordinator does with volumes whose claim is gone.
func (d *disk) release(t *testing.T) {
	t.Helper()
	for _, pv := range d.named(t) {
		pv.Status.Phase = corev1.VolumeReleased
		_, err := d.api.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), &pv, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (d *disk) named(t *testing.T) []corev1.PersistentVolume {
	t.Helper()
	list, err := d.api.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// check wants every volume to be named by an object, and no record.
func (d *disk) check(t *testing.T, volumes int) {
	t.Helper()
	var named []string
	for _, pv := range d.named(t) {
		named = append(named, pv.Name)
	}
	d.driver.mu.Lock()
	has := slices.Sorted(maps.Keys(d.driver.volumes))
	d.driver.mu.Unlock()
	if len(has) != volumes || !slices.Equal(has, named) {
		t.Errorf("the disk has %q, the API names %q; want %d of both", has, named, volumes)
	}
	if left := d.records.names(); len(left) > 0 {
		t.Errorf("records of %q are left", left)
	}
}

// everyEnd calls f with an agent that is killed before each step of making a volume,
// and after the last.
func everyEnd(t *testing.T, f func(t *testing.T, d *disk, before int)) {
	var all []string
	synctest.Test(t, func(*testing.T) { all = newDisk(class(), claim()).run(0).steps })
	want := []string{"record pvc-1, made: false", "CreateVolume", "record pvc-1, made: true",
		"create PersistentVolume", "forget pvc-1"}
	if !slices.Equal(all, want) {
		t.Fatalf("steps %q, want %q", all, want)
	}
	for i, step := range append(all, "nothing") {
		t.Run("before_"+strings.ReplaceAll(step, " ", "_"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk(class(), claim())
				d.run(i + 1)
				f(t, d, i)
			})
		})
	}
}

func TestKilledAndClaimStays(t *testing.T) {
	everyEnd(t, func(t *testing.T, d *disk, _ int) {
		d.run(0)
		d.check(t, 1)
	})
}

// TestKilledAndClaimDeleted: the claim goes while no agent runs.
func TestKilledAndClaimDeleted(t *testing.T) {
	everyEnd(t, func(t *testing.T, d *disk, _ int) {
		d.deleteClaim(t)
		d.run(0, func() { d.release(t) })
		for _, pv := range d.named(t) { // the fake knows no finalizers
			t.Errorf("volume %s is left", pv.Name)
		}
		d.check(t, 0)
	})
}

// TestKilledWhileItCleans: the second agent is killed too, at each step.
func TestKilledWhileItCleans(t *testing.T) {
	everyEnd(t, func(t *testing.T, d *disk, _ int) {
		d.deleteClaim(t)
		for ends := 1; len(d.run(ends).steps) == ends-1 && ends < 10; ends++ {
			d.run(0, func() { d.release(t) })
			d.check(t, 0)
		}
	})
}

// TestKilledAndGivenToOther: the scheduler has chosen another node meanwhile. What the
// API was not told of goes; else it is told of it, and its policy decides.
func TestKilledAndGivenToOther(t *testing.T) {
	everyEnd(t, func(t *testing.T, d *disk, before int) {
		other := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations["volume.kubernetes.io/selected-node"] = "n2" })
		_, err := d.api.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), other, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d.run(0)
		want := 0
		if before > 2 {
			want = 1
		}
		d.check(t, want)
	})
}

// TestRetainedStays: a volume that the API had, and whose object a user deleted to keep
// the data, stays, wherever the agent that made it was killed.
func TestRetainedStays(t *testing.T) {
	everyEnd(t, func(t *testing.T, d *disk, _ int) {
		had := d.named(t)
		for _, pv := range had {
			err := d.api.CoreV1().PersistentVolumes().Delete(t.Context(), pv.Name, metav1.DeleteOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		d.deleteClaim(t)
		keep := class()
		policy := corev1.PersistentVolumeReclaimRetain
		keep.ReclaimPolicy = &policy
		for name, u := range d.records.kept { // as of a class that retains
			if u.Volume != nil {
				u.Volume.Spec.PersistentVolumeReclaimPolicy = policy
				d.records.kept[name] = u
			}
		}
		d.run(0, func() { d.release(t) })
		if _, ok := d.driver.volumes["pvc-1"]; !ok && len(had) > 0 {
			t.Error("the data of a volume whose object was deleted is gone")
		}
		if left := d.records.names(); len(left) > 0 {
			t.Errorf("records of %q are left", left)
		}
	})
}

// TestOthersStay: volumes without a record are nobody's business.
func TestOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(class())
		d.driver.volumes["pvc-1"], d.driver.volumes["somebody-s"] = gib, gib
		d.run(0)
		if len(d.driver.volumes) != 2 || len(d.driver.calls) > 0 {
			t.Errorf("volumes %v after calls %q", d.driver.volumes, d.driver.calls)
		}
	})
}

// TestNothingGoesBeforeAllIsKnown: what cannot be listed may name the volume.
func TestNothingGoesBeforeAllIsKnown(t *testing.T) {
	for _, kind := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk(class(), claim())
				d.run(3) // the volume is there, and begun
				d.api.PrependReactor("list", kind, func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewInternalError(errors.New("not now"))
				})
				d.run(0, func() { d.deleteClaim(t) })
				d.run(0)
				if len(d.driver.volumes) != 1 || !slices.Equal(d.records.names(), []string{"pvc-1"}) {
					t.Errorf("volumes %v, records %q", d.driver.volumes, d.records.names())
				}
			})
		})
	}
}

// TestClaimDeletedMeanwhile: no agent is killed; the API refuses the volume's object,
// and the claim goes.
func TestClaimDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(class(), claim())
		var refuse sync.Once
		once := func(clienttesting.Action) (no bool, _ runtime.Object, err error) {
			refuse.Do(func() { no, err = true, apierrors.NewInternalError(errors.New("not now")) })
			return no, nil, err
		}
		d.api.PrependReactor("create", "persistentvolumes", once)
		d.run(0, func() { d.deleteClaim(t) }, func() { d.release(t) })
		d.check(t, 0)
	})
}

// TestClaimGivenBack: what may be there of a volume that found no room goes.
func TestClaimGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(class(), claim())
		d.driver.room = 1
		d.run(0)
		if left := d.records.names(); len(left) > 0 || !slices.Contains(d.driver.calls, "delete pvc-1") {
			t.Errorf("records %q after calls %q", left, d.driver.calls)
		}
		if got := d.claim(t); locality.AskedOf(got) != "" {
			t.Errorf("the claim is still given to %q", locality.AskedOf(got))
		}
	})
}

func (d *disk) claim(t *testing.T) *corev1.PersistentVolumeClaim {
	t.Helper()
	c, err := d.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDeletedOnce: a volume that is deleted is shown once more, without its finalizer,
// and the API refuses whatever else is asked about it then.
func TestDeletedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(class(), claim())
		d.run(0)
		d.deleteClaim(t)
		stays := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil }
		d.api.PrependReactor("delete", "persistentvolumes", stays) // others' finalizers keep it
		if steps := d.run(0, func() { d.release(t) }).steps; !slices.Equal(steps, []string{"DeleteVolume"}) {
			t.Errorf("steps %q", steps)
		}
		if pv := d.named(t); len(pv) != 1 || len(pv[0].Finalizers) > 0 {
			t.Errorf("the API has %+v", pv)
		}
	})
}
