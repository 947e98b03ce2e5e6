package provision

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/csi/locality"
)

// roomEach is how often the driver is asked for its room: others write to the same
// disk, and no event tells of that.
const roomEach = time.Minute

func (p *Provisioner) allClasses() *cache.ListWatch {
	all := p.Client.StorageV1().StorageClasses()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return all.Watch(ctx, o)
		},
	}
}

// tellRoom has the scheduler know how much room there is for each class, until ctx
// ends.
func (p *Provisioner) tellRoom(ctx context.Context) {
	told := map[string]int64{}
	pause := api.Retry()
	for {
		again := roomEach
		if err := p.tellAll(ctx, told); err == nil {
			pause = api.Retry()
		} else if ctx.Err() == nil {
			again = pause.Step()
			p.Log.Debug("the scheduler does not know how much room there is", "err", err, "again", again)
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-p.roomChanged:
			timer.Stop()
		}
	}
}

// changed has room looked at again.
func (p *Provisioner) changed() {
	select {
	case p.roomChanged <- struct{}{}:
	default:
	}
}

// tellAll writes what is new since told.
func (p *Provisioner) tellAll(ctx context.Context, told map[string]int64) error {
	ours, full := map[string]bool{}, false
	for _, obj := range p.classes.List() {
		class, ok := obj.(*storagev1.StorageClass)
		if !ok || class.Provisioner != locality.Driver {
			continue
		}
		ours[class.Name] = true
		room, largest, err := p.Driver.Room(ctx, driverParameters(class), map[string]string{locality.NodeKey: p.Node})
		if err != nil {
			return err
		}
		if room == 0 && !full && p.Full != nil {
			full = true
			p.Full()
		}
		if was, ok := told[class.Name]; ok && near(was, room) {
			continue
		}
		if err := p.writeRoom(ctx, class.Name, room, largest); err != nil {
			return err
		}
		told[class.Name] = room
	}
	for name := range told {
		if ours[name] {
			continue
		}
		err := p.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).Delete(ctx, p.roomName(name),
			metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		delete(told, name)
	}
	return nil
}

// full has the scheduler know now that a volume of a class found no room.
func (p *Provisioner) full(ctx context.Context, class *storagev1.StorageClass) error {
	room, largest, err := p.Driver.Room(ctx, driverParameters(class), map[string]string{locality.NodeKey: p.Node})
	if err != nil {
		return err
	}
	return p.writeRoom(ctx, class.Name, room, largest)
}

// near tells whether two amounts differ by less than about a sixty-fourth, or by
// less than 16 MiB: a disk that others write a little to is not worth a request.
func near(a, b int64) bool {
	step := max(16<<20, int64(1)<<max(0, bits.Len64(uint64(a))-6))
	return max(a, b)-min(a, b) < step
}

// roomName is the name of the object for a class.
func (p *Provisioner) roomName(class string) string {
	return fmt.Sprintf("local-%x", sha256.Sum256([]byte(p.Node+"/"+class)))[:40]
}

func (p *Provisioner) writeRoom(ctx context.Context, class string, room, largest int64) error {
	all := p.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	uid := p.NodeUID()
	if uid == "" {
		return errors.New("the node is not registered yet")
	}
	want := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Name:            p.roomName(class),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: p.Node, UID: uid}},
		},
		NodeTopology:      locality.Topology(p.Node),
		StorageClassName:  class,
		Capacity:          amount(room),
		MaximumVolumeSize: amount(largest),
	}
	_, err := all.Create(ctx, want, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	has, err := all.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	has.Capacity, has.MaximumVolumeSize = want.Capacity, want.MaximumVolumeSize
	has.OwnerReferences = want.OwnerReferences
	_, err = all.Update(ctx, has, metav1.UpdateOptions{})
	return err
}

func amount(bytes int64) *resource.Quantity {
	q := quantity(bytes)
	return &q
}
