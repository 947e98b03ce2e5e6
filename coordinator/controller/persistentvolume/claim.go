package persistentvolume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelper "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi/locality"
	"github.com/shoal-project/shoal/csi/migration"
)

// defaultClass and its beta form mark the StorageClass of claims without one.
const (
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
)

// preResize is how large a volume's file system is that was made larger itself, until a
// node has made the file system larger, too.
const preResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

// view is what the decision about a claim looks at.
type view struct {
	Volumes []*corev1.PersistentVolume
	Classes []*storagev1.StorageClass
	// Waiting names the pods that want the claim and have no node.
	Waiting func() []string
}

func (v *view) volume(name string) *corev1.PersistentVolume {
	for _, pv := range v.Volumes {
		if pv.Name == name {
			return pv
		}
	}
	return nil
}

func (v *view) class(name string) *storagev1.StorageClass {
	for _, c := range v.Classes {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// fallback is the class of claims without one: of several the newest.
func (v *view) fallback() *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, c := range v.Classes {
		if c.Annotations[defaultClass] != "true" && c.Annotations[betaDefaultClass] != "true" {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&c.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < found.Name {
			found = c
		}
	}
	return found
}

// event is told of the object that is decided about.
type event struct{ kind, reason, message string }

func warning(reason, format string, args ...any) *event {
	return &event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
}

func normal(reason, format string, args ...any) *event {
	return &event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)}
}

// claimStep is what is to be done about a claim.
type claimStep struct {
	// Bind is the volume to bind it to.
	Bind *corev1.PersistentVolume
	// Phase is Pending or Lost; "" leaves it.
	Phase corev1.PersistentVolumeClaimPhase
	// Class is written to a claim without one.
	Class string
	// Provisioner is asked for a volume.
	Provisioner string
	// Place is the claim's class where the volume is made by a node, and nobody but
	// this controller chooses which.
	Place *storagev1.StorageClass
	Event *event
}

// planClaim decides about a claim, as upstream's persistent volume controller.
func planClaim(c *corev1.PersistentVolumeClaim, v *view) (claimStep, error) {
	switch {
	case metav1.HasAnnotation(c.ObjectMeta, storagehelper.AnnBindCompleted):
		return planBound(c, v), nil
	case c.Spec.VolumeName != "":
		return planNamed(c, v), nil
	}
	delayed := isDelayed(c, v)
	found, err := match(c, v.Volumes, delayed)
	if err != nil {
		return claimStep{}, err
	}
	if found != nil {
		return claimStep{Bind: found}, nil
	}
	return planUnmatched(c, v, delayed), nil
}

// isDelayed tells whether the scheduler chooses the volume.
func isDelayed(c *corev1.PersistentVolumeClaim, v *view) bool {
	class := v.class(storagehelper.GetPersistentVolumeClaimClass(c))
	return class != nil && ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
}

// match finds the volume for a claim: among those with the fewest modes that
// do, the smallest.
func match(c *corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume,
	delayed bool) (*corev1.PersistentVolume, error) {
	byModes := map[int][]*corev1.PersistentVolume{}
	for _, pv := range volumes {
		if storagehelper.CheckAccessModes(c, pv) {
			n := len(pv.Spec.AccessModes)
			byModes[n] = append(byModes[n], pv)
		}
	}
	counts := make([]int, 0, len(byModes))
	for n := range byModes {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	for _, n := range counts {
		found, err := storagehelper.FindMatchingVolume(c, byModes[n], nil, nil, delayed, true)
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// planUnmatched: no volume is there for the claim.
func planUnmatched(c *corev1.PersistentVolumeClaim, v *view, delayed bool) claimStep {
	name := storagehelper.GetPersistentVolumeClaimClass(c)
	if !storagehelper.PersistentVolumeClaimHasClass(c) {
		if class := v.fallback(); class != nil {
			return claimStep{Class: class.Name}
		}
	}
	switch {
	case delayed && !storagehelper.IsDelayBindingProvisioning(c):
		return claimStep{Phase: corev1.ClaimPending, Event: waits(v.Waiting())}
	case name == "":
		return claimStep{Phase: corev1.ClaimPending, Event: normal("FailedBinding",
			"no persistent volumes available for this claim and no storage class is set")}
	}
	class := v.class(name)
	if class == nil {
		return claimStep{Event: warning("ProvisioningFailed", "storageclass.storage.k8s.io %q not found", name)}
	}
	provisioner := class.Provisioner
	if driver := migration.Driver(provisioner); driver != "" {
		provisioner = driver
	}
	if strings.HasPrefix(provisioner, "kubernetes.io/") {
		return claimStep{Event: warning("ProvisioningFailed", "no volume plugin matched name: %s", provisioner)}
	}
	step := claimStep{Provisioner: provisioner, Event: normal("ExternalProvisioning",
		"Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. "+
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
		provisioner)}
	if class.Provisioner == locality.Driver {
		step.Place = class
	}
	return step
}

func waits(pods []string) *event {
	switch len(pods) {
	case 0:
		return normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	case 1:
		return normal("WaitForPodScheduled", "waiting for pod %s to be scheduled", pods[0])
	}
	return normal("WaitForPodScheduled", "waiting for pods %s to be scheduled", strings.Join(pods, ","))
}

// planNamed: the claim names its volume and is not bound to it yet.
func planNamed(c *corev1.PersistentVolumeClaim, v *view) claimStep {
	pv := v.volume(c.Spec.VolumeName)
	switch {
	case pv == nil:
		return claimStep{Phase: corev1.ClaimPending}
	case pv.Spec.ClaimRef != nil && !storagehelper.IsVolumeBoundToClaim(pv, c):
		return claimStep{Phase: corev1.ClaimPending,
			Event: warning("FailedBinding", "volume %q already bound to a different claim.", pv.Name)}
	case pv.Spec.ClaimRef == nil:
		if why := unfit(c, pv); why != "" {
			return claimStep{Phase: corev1.ClaimPending,
				Event: warning("VolumeMismatch", "Cannot bind to requested volume %q: %s", pv.Name, why)}
		}
	}
	return claimStep{Bind: pv}
}

// unfit tells why a volume that a claim names is not for it.
func unfit(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) string {
	want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case pv.DeletionTimestamp != nil:
		return fmt.Sprintf("the volume is marked for deletion %q", pv.Name)
	case have.Cmp(want) < 0:
		return "requested PV is too small"
	case storagehelper.GetPersistentVolumeClass(pv) != storagehelper.GetPersistentVolumeClaimClass(c):
		return "storageClassName does not match"
	case ptr.Deref(c.Spec.VolumeAttributesClassName, "") != ptr.Deref(pv.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case storagehelper.CheckVolumeModeMismatches(&c.Spec, &pv.Spec):
		return "incompatible volumeMode"
	case !storagehelper.CheckAccessModes(c, pv):
		return "incompatible accessMode"
	}
	return ""
}

// planBound: the claim was bound once.
func planBound(c *corev1.PersistentVolumeClaim, v *view) claimStep {
	lost := func(reason, message string) claimStep {
		step := claimStep{Phase: corev1.ClaimLost}
		if c.Status.Phase != corev1.ClaimLost {
			step.Event = warning(reason, "%s", message)
		}
		return step
	}
	if c.Spec.VolumeName == "" {
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	pv := v.volume(c.Spec.VolumeName)
	switch {
	case pv == nil:
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != c.UID:
		return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return claimStep{Bind: pv}
}

// claimStatus is the status of a claim in a phase; pv is the volume it is bound
// to, nil for none.
func claimStatus(c *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase,
	pv *corev1.PersistentVolume) corev1.PersistentVolumeClaimStatus {
	s := *c.Status.DeepCopy()
	s.Phase = phase
	if pv == nil {
		s.AccessModes, s.Capacity, s.CurrentVolumeAttributesClassName = nil, nil, nil
		return s
	}
	s.AccessModes = pv.Spec.AccessModes
	// Only on becoming bound: later its file system may be smaller than the
	// volume, and the class may be on its way to another.
	if c.Status.Phase != phase {
		s.Capacity = pv.Spec.Capacity
		if size, err := resource.ParseQuantity(pv.Annotations[preResize]); err == nil {
			s.Capacity = corev1.ResourceList{corev1.ResourceStorage: size}
		}
		if c.Status.Phase == corev1.ClaimPending {
			s.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		}
	}
	return s
}
