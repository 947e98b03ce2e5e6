package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// migrated are the kinds of volumes whose work CSI drivers do on every node.
const migrated = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
	"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"

// nodeIDs is the annotation of a Node with what drivers call it, by driver.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// StorageDriver is what a CSI driver says of this node.
type StorageDriver struct {
	Name, NodeID string
	// MaxVolumes is how many volumes the node can have, 0 for no limit.
	MaxVolumes int64
	Topology   map[string]string
}

// CSINode is the writer of this node's CSINode object, and of what storage drivers
// say of the node in its Node: labels of topology, and an annotation. It writes
// when a driver comes or goes, and when the Node is another.
type CSINode struct {
	Client kubernetes.Interface
	Name   string
	// Silence is how long Install waits for an API that does not answer.
	Silence time.Duration
	Log     *slog.Logger

	mu   sync.Mutex
	node *corev1.Node // as last heard
	// drivers are those to show, gone those to be removed.
	drivers map[string]*shown
	gone    map[string]bool
	once    sync.Once
	wake    chan struct{}
}

// shown is a driver that the API shall show.
type shown struct {
	StorageDriver
	// tried is closed when the API has it, or err says why it has not.
	tried chan struct{}
	err   error
}

// errRefused is why a driver cannot be shown, whenever it is tried again.
type errRefused struct{ error }

func (e errRefused) Unwrap() error { return e.error }

func (c *CSINode) waker() chan struct{} {
	c.once.Do(func() { c.wake = make(chan struct{}, 1) })
	return c.wake
}

func (c *CSINode) poke() {
	select {
	case c.waker() <- struct{}{}:
	default:
	}
}

// Heed takes every version of the Node. Another Node of the name needs another
// CSINode.
func (c *CSINode) Heed(n *corev1.Node) {
	c.mu.Lock()
	other := c.node == nil || c.node.UID != n.UID
	c.node = n
	c.mu.Unlock()
	if other {
		c.poke()
	}
}

// Install shows a driver, and returns when the API has it or refuses it. While the
// API is silent that is not waited for longer than Silence: it is shown later.
func (c *CSINode) Install(ctx context.Context, d StorageDriver) error {
	if d.NodeID == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	s := &shown{StorageDriver: d, tried: make(chan struct{})}
	c.mu.Lock()
	if c.drivers == nil {
		c.drivers = map[string]*shown{}
	}
	c.drivers[d.Name] = s
	delete(c.gone, d.Name)
	c.mu.Unlock()
	c.poke()
	select {
	case <-s.tried:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(c.Silence):
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.err != nil && c.drivers[d.Name] == s {
		delete(c.drivers, d.Name)
	}
	return s.err
}

// Uninstall removes a driver that is gone.
func (c *CSINode) Uninstall(driver string) {
	c.mu.Lock()
	delete(c.drivers, driver)
	if c.gone == nil {
		c.gone = map[string]bool{}
	}
	c.gone[driver] = true
	c.mu.Unlock()
	c.poke()
}

// Run keeps the objects until ctx ends.
func (c *CSINode) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.waker():
		}
		if err := patiently(ctx, c.Log, "write the CSINode", c.write); err != nil {
			return nil
		}
	}
}

// write brings both objects to what is wanted.
func (c *CSINode) write(ctx context.Context) error {
	c.mu.Lock()
	node := c.node
	drivers, gone := slices.Collect(maps.Values(c.drivers)), slices.Collect(maps.Keys(c.gone))
	c.mu.Unlock()
	if node == nil {
		return nil // it is heard of as soon as it is registered
	}
	slices.SortFunc(drivers, func(a, b *shown) int { return strings.Compare(a.Name, b.Name) })
	accepted := drivers[:0:0]
	for _, d := range drivers {
		var refused errRefused
		switch err := c.label(ctx, d.StorageDriver); {
		case errors.As(err, &refused):
			c.answer(d, fmt.Errorf("error updating Node object with CSI driver node info: %w", refused.error))
		case err != nil:
			return err
		default:
			accepted = append(accepted, d)
		}
	}
	err := c.publish(ctx, node.UID, accepted, gone)
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		err = fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
		for _, d := range accepted {
			if c.answer(d, err) {
				return nil // they try again by themselves
			}
		}
		return err
	}
	if err != nil {
		return err
	}
	for _, d := range accepted {
		c.answer(d, nil)
	}
	return c.forget(ctx, gone)
}

// answer tells who waits whether the driver is shown; false when nobody does.
func (c *CSINode) answer(d *shown, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-d.tried:
		return false
	default:
		d.err = err
		close(d.tried)
		return true
	}
}

// forget removes drivers that are gone from the Node, and then from memory.
func (c *CSINode) forget(ctx context.Context, gone []string) error {
	if len(gone) == 0 {
		return nil
	}
	err := c.change(ctx, func(ids map[string]string, _ *corev1.Node) (map[string]string, error) {
		for _, name := range gone {
			delete(ids, name)
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range gone {
		if c.drivers[name] == nil {
			delete(c.gone, name)
		}
	}
	return nil
}

// label shows a driver in the Node.
func (c *CSINode) label(ctx context.Context, d StorageDriver) error {
	return c.change(ctx, func(ids map[string]string, n *corev1.Node) (map[string]string, error) {
		for _, key := range slices.Sorted(maps.Keys(d.Topology)) {
			if is, has := n.Labels[key]; has && is != d.Topology[key] {
				return nil, errRefused{fmt.Errorf(
					"detected topology value collision: driver reported %q:%q but existing label is %q:%q",
					key, d.Topology[key], key, is)}
			}
		}
		ids[d.Name] = d.NodeID
		return d.Topology, nil
	})
}

// change patches the Node's annotation, and its labels with what f returns, where
// that differs from what is there.
func (c *CSINode) change(ctx context.Context,
	f func(ids map[string]string, n *corev1.Node) (labels map[string]string, err error)) error {
	nodes := c.Client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ids := map[string]string{}
	if text := n.Annotations[nodeIDs]; text != "" && json.Unmarshal([]byte(text), &ids) != nil {
		ids = map[string]string{} // it is ours alone: written anew
	}
	before := maps.Clone(ids)
	labels, err := f(ids, n)
	if err != nil {
		return err
	}
	if maps.Equal(before, ids) && hasAll(n.Labels, labels) {
		return nil
	}
	var annotation *string // nil removes it
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		s := string(text)
		annotation = &s
	}
	metadata := map[string]any{"annotations": map[string]*string{nodeIDs: annotation}}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = nodes.Patch(ctx, c.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return errRefused{err}
	}
	return err
}

func hasAll(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if is, has := labels[key]; !has || is != value {
			return false
		}
	}
	return true
}

// publish writes the CSINode. One of another Node with this name goes first.
func (c *CSINode) publish(ctx context.Context, uid types.UID, drivers []*shown, gone []string) error {
	all := c.Client.StorageV1().CSINodes()
	old, err := all.Get(ctx, c.Name, metav1.GetOptions{})
	if err == nil && !ownedBy(old, uid) {
		err = all.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(old.UID))})
		if err == nil {
			err = apierrors.NewNotFound(storagev1.Resource("csinodes"), c.Name)
		}
	}
	if apierrors.IsNotFound(err) {
		n := buildCSINode(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
			Name:            c.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: c.Name, UID: uid}},
		}}, drivers, gone)
		_, err = all.Create(ctx, n, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	n := buildCSINode(old, drivers, gone)
	if equality.Semantic.DeepEqual(old, n) {
		return nil
	}
	_, err = all.Update(ctx, n, metav1.UpdateOptions{})
	return err
}

func ownedBy(n *storagev1.CSINode, uid types.UID) bool {
	return slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Node" && o.Name == n.Name && o.UID == uid
	})
}

// buildCSINode is what the CSINode must be, given what the API has of it. Drivers
// that this agent has not heard of yet stay.
func buildCSINode(old *storagev1.CSINode, drivers []*shown, gone []string) *storagev1.CSINode {
	n := old.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[corev1.MigratedPluginsAnnotationKey] = migrated
	n.Spec.Drivers = slices.DeleteFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		return slices.Contains(gone, d.Name)
	})
	for _, d := range drivers {
		entry := entryOf(d.StorageDriver)
		i := slices.IndexFunc(n.Spec.Drivers, func(o storagev1.CSINodeDriver) bool { return o.Name == d.Name })
		if i < 0 {
			n.Spec.Drivers = append(n.Spec.Drivers, entry)
		} else if !equality.Semantic.DeepEqual(n.Spec.Drivers[i], entry) {
			// A driver's node ID cannot be changed, but it can be another driver.
			n.Spec.Drivers = append(slices.Delete(n.Spec.Drivers, i, i+1), entry)
		}
	}
	if n.Spec.Drivers == nil {
		n.Spec.Drivers = []storagev1.CSINodeDriver{}
	}
	return n
}

func entryOf(d StorageDriver) storagev1.CSINodeDriver {
	out := storagev1.CSINodeDriver{Name: d.Name, NodeID: d.NodeID, TopologyKeys: slices.Sorted(maps.Keys(d.Topology))}
	if d.MaxVolumes > 0 {
		count := int32(min(d.MaxVolumes, math.MaxInt32))
		out.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return out
}
