package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/shoal-project/shoal/csi"
)

// Storage is what the API says of storage drivers and of their volumes.
type Storage interface {
	// CSIDriver is the object of a driver, nil for none.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	// Attachment is a VolumeAttachment.
	Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	// Claim reads a claim; PatchClaimStatus changes what it says.
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) (*corev1.PersistentVolumeClaim, error)
}

// attachWait is how long a pod waits for its volumes to be attached before it tells
// so, and begins anew.
const attachWait = 2*time.Minute + 3*time.Second

// HeedNode takes every version of the Node: it tells what is attached.
func (m *Manager) HeedNode(n *corev1.Node) {
	m.mu.Lock()
	m.node = n
	m.mu.Unlock()
	m.Attachable()
}

// Attachable has those look again who wait for a volume to be attached: the Node
// or a CSIDriver changed.
func (m *Manager) Attachable() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.attached != nil {
		close(m.attached)
		m.attached = nil
	}
}

// DriversChanged has those go on who wait for a storage driver: one came or went.
func (m *Manager) DriversChanged() {
	m.mu.Lock()
	if m.registered != nil {
		close(m.registered)
		m.registered = nil
	}
	now := time.Now()
	for _, e := range m.pods {
		for _, v := range e.volumes {
			if e.made && v.ofStorageDriver() {
				e.due = now // of an earlier agent perhaps, and its driver was not there yet
			}
		}
	}
	m.mu.Unlock()
	m.notify()
}

// awaitDriver does what needs a storage driver. Where that is not there, the pod is
// told so, and it is tried again when it registers.
func (m *Manager) awaitDriver(ctx context.Context, p *corev1.Pod, v *corev1.Volume, do func() error) error {
	var timeout <-chan time.Time
	for {
		changed := m.registration()
		err := do()
		missing := new(csi.NotRegisteredError)
		if !errors.As(err, &missing) {
			return err
		}
		if timeout == nil {
			timer := time.NewTimer(attachWait)
			defer timer.Stop()
			timeout = timer.C
			told := m.named(p, v, err)
			m.tell(p, corev1.EventTypeWarning, told.Reason(), "%v", told)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout:
			return err
		case <-changed:
		}
	}
}

// registration is closed when a driver came or went.
func (m *Manager) registration() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registered == nil {
		m.registered = make(chan struct{})
	}
	return m.registered
}

// VolumesInUse names the volumes that must not be detached from this node: those
// that have a record, from before they are touched until nothing is left of them.
func (m *Manager) VolumesInUse() []corev1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []corev1.UniqueVolumeName
	for _, e := range m.pods {
		for _, v := range e.volumes {
			if name := v.inUse(); name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// inUse is the volume's name in the Node's status, "" for one that need not be attached.
func (v *Volume) inUse() corev1.UniqueVolumeName {
	switch {
	case v.CSI != nil:
		return v.CSI.InUse
	case v.Disk != nil:
		return v.Disk.InUse
	}
	return ""
}

// tellInUse has the Node's status written.
func (m *Manager) tellInUse(v *Volume) {
	if v.inUse() != "" && m.InUseChanged != nil {
		m.InUseChanged()
	}
}

// describe finds out what a volume's record must know of its storage driver. While
// the API is away that is what was recorded before.
func (m *Manager) describe(ctx context.Context, p *corev1.Pod, v *Volume) error {
	src := csiOf(v.Source)
	if src == nil || !v.ofStorageDriver() {
		return nil
	}
	if m.Storage == nil {
		return errors.New("csi volumes are not supported by a node without an API server")
	}
	c := &CSI{}
	object, err := m.Storage.CSIDriver(ctx, src.driver)
	old := m.recorded(v.Pod.UID, v.Volume.Name)
	switch {
	case err != nil && (old == nil || old.CSI == nil || !v.same(old)):
		return fmt.Errorf("kubernetes.io/csi: failed to get CSIDriver %s: %w", src.driver, err)
	case err != nil:
		*c = *old.CSI
	default:
		if object != nil {
			c.Spec = &object.Spec
		}
		if old != nil && old.CSI != nil && v.same(old) {
			c.PublishContext, c.published, c.next = old.CSI.PublishContext, old.CSI.published, old.CSI.next
			c.looked, c.Boot, c.Size = old.CSI.looked, old.CSI.Boot, old.CSI.Size
		}
		required := c.Spec == nil || c.Spec.AttachRequired == nil || *c.Spec.AttachRequired
		if v.Persistent != nil && required {
			c.InUse = csi.VolumeName(src.driver, v.handle())
		}
		if c.InUse == "" && old != nil && old.CSI != nil && v.same(old) {
			// It was attached when the driver may have touched it: it stays in use until
			// that is undone.
			c.InUse, c.needNotAttach = old.CSI.InUse, true
		}
	}
	c.Group = fsGroup(p)
	v.CSI = c
	return nil
}

// awaitAttached waits until a volume is known to be in use and attached, which must
// be before anything is done with it; it is no wait for one that need not be.
func (m *Manager) awaitAttached(ctx context.Context, v *Volume) error {
	if v.Disk != nil && v.Disk.InUse != "" {
		return m.awaitDisk(ctx, v)
	}
	if v.CSI == nil || v.CSI.InUse == "" || v.CSI.needNotAttach || v.CSI.published {
		return nil
	}
	timeout := time.NewTimer(attachWait)
	defer timeout.Stop()
	for {
		changed, ready := m.attachment(v.CSI.InUse)
		if ready {
			return inStep("WaitForAttach", m.takeAttachment(ctx, v))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			if m.exhausted(ctx, v) {
				return &Error{Step: stepLimit, Err: context.DeadlineExceeded}
			}
			return &Error{Step: stepWait, Err: context.DeadlineExceeded}
		case <-changed:
		}
		// Whether it must be attached may have changed too.
		if object, err := m.Storage.CSIDriver(ctx, csiOf(v.Source).driver); err == nil && object != nil &&
			object.Spec.AttachRequired != nil && !*object.Spec.AttachRequired {
			v.CSI.needNotAttach, v.CSI.Spec = true, &object.Spec
			return m.keep(v)
		}
	}
}

// awaitDisk waits until the Node lists a disk of a storage network, which no other
// node has then. One that is the pod's since the machine started was listed.
func (m *Manager) awaitDisk(ctx context.Context, v *Volume) error {
	if v.Disk.Taken == m.start() {
		return nil
	}
	timeout := time.NewTimer(attachWait)
	defer timeout.Stop()
	for {
		changed, ready := m.attachment(v.Disk.InUse)
		if ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return &Error{Step: stepWait, Err: context.DeadlineExceeded}
		case <-changed:
		}
	}
}

// exhausted tells whether a volume is not attached since the node has as many as it
// can have, where its driver wants to be asked how many that are.
func (m *Manager) exhausted(ctx context.Context, v *Volume) bool {
	driver := csiOf(v.Source).driver
	if v.CSI.Spec == nil || v.CSI.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return false
	}
	a, err := m.Storage.Attachment(ctx, csi.AttachmentName(v.handle(), driver, m.NodeName))
	if err != nil || a.Status.AttachError == nil || a.Status.AttachError.ErrorCode == nil ||
		codes.Code(*a.Status.AttachError.ErrorCode) != codes.ResourceExhausted {
		return false
	}
	if m.Exhausted != nil {
		m.Exhausted(ctx, driver)
	}
	return true
}

// attachment tells whether the Node shows a volume as in use and as attached, and
// what is closed when that may have changed.
func (m *Manager) attachment(name corev1.UniqueVolumeName) (changed <-chan struct{}, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.attached == nil {
		m.attached = make(chan struct{})
	}
	n := m.node
	return m.attached, n != nil && slices.Contains(n.Status.VolumesInUse, name) &&
		slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == name })
}

// takeAttachment records what the driver told of the attachment.
func (m *Manager) takeAttachment(ctx context.Context, v *Volume) error {
	id := csi.AttachmentName(v.handle(), csiOf(v.Source).driver, m.NodeName)
	a, err := m.Storage.Attachment(ctx, id)
	switch {
	case err != nil:
		return fmt.Errorf("volume %s has GET error for volume attachment %s: %w", v.handle(), id, err)
	case a.DeletionTimestamp != nil:
		return errors.New("volume attachment is being deleted")
	case a.Status.Attached:
		v.CSI.PublishContext = a.Status.AttachmentMetadata
		return m.keep(v)
	case a.Status.AttachError != nil:
		return errors.New(a.Status.AttachError.Message)
	}
	return fmt.Errorf("volume %s is not attached for volume attachment %s", v.handle(), id)
}
