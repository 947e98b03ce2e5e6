package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/csi"
)

// StorageDrivers are the drivers that serve on this node.
type StorageDrivers interface {
	// Client finds one by its name.
	Client(driver string) (*csi.Client, error)
}

// CSI is what the record of a volume knows of its storage driver beside its
// source: it is enough to use the volume while the API is away.
type CSI struct {
	// Spec is that of the CSIDriver object, nil for none.
	Spec *storagev1.CSIDriverSpec `json:"spec,omitempty"`
	// InUse is the volume's name in the Node's status, "" where it need not be
	// attached to the node.
	InUse corev1.UniqueVolumeName `json:"inUse,omitempty"`
	// PublishContext is what the driver told of the attachment.
	PublishContext map[string]string `json:"publishContext,omitempty"`
	// Group is the pod's, nil for none.
	Group *int64 `json:"group,omitempty"`
	// Boot is Manager.Boot of when the driver published the volume to the pod, ""
	// before that and once it is being undone. An agent that takes over may call the
	// driver for a pod that runs only where it is its own: what was staged and
	// attached before the machine started anew is not.
	Boot string `json:"boot,omitempty"`
	// Size is that of a ReadWriteMany volume on this node, nil while it is not known:
	// another node may have made it larger.
	Size *resource.Quantity `json:"size,omitempty"`

	// published since this agent runs; next is when to do it again, if ever.
	published bool
	next      time.Time
	// needNotAttach: the driver's object says so now, whatever it said before.
	needNotAttach bool
	// looked is when the claim was looked at for a new size; refused: the driver did
	// not expand the volume, and that was its last word.
	looked  time.Time
	refused bool
}

// noDrivers is StorageDrivers of a node that nobody registers with.
type noDrivers struct{}

// Client implements StorageDrivers.
func (noDrivers) Client(driver string) (*csi.Client, error) { return new(csi.Drivers).Client(driver) }

// republishEach is how often volumes are published again whose driver wants that.
const republishEach = time.Minute

// csiDriver has storage drivers mount volumes: those behind claims, and those that
// pods have inline. It writes beside the volumes what the kubelet does, since
// drivers and their users know that: vol_data.json is there before the driver is
// called first, and goes when it has undone all.
type csiDriver struct {
	root, node string // the kubelet's root directory, this node's name
	drivers    StorageDrivers
	objects    Objects
	tokens     Tokens
	mounts     mounter
	boot       string // Manager.Boot
	log        *slog.Logger
}

// Supports implements driver.
func (csiDriver) Supports(s Source) bool { return csiOf(s) != nil && !s.block() }

// csiSource is what is common to a persistent volume and one inline.
type csiSource struct {
	driver, fsType string
	attributes     map[string]string
	publishSecret  *corev1.SecretReference
	readOnly       bool
}

func csiOf(s Source) *csiSource {
	if s.Persistent != nil {
		c := s.Persistent.Spec.CSI
		if c == nil {
			return nil
		}
		claim := s.Volume.PersistentVolumeClaim
		return &csiSource{driver: c.Driver, fsType: c.FSType, attributes: c.VolumeAttributes,
			publishSecret: c.NodePublishSecretRef, readOnly: claim != nil && claim.ReadOnly}
	}
	c := s.Volume.CSI
	if c == nil {
		return nil
	}
	out := &csiSource{driver: c.Driver, attributes: c.VolumeAttributes, readOnly: c.ReadOnly != nil && *c.ReadOnly}
	if c.FSType != nil {
		out.fsType = *c.FSType
	}
	if c.NodePublishSecretRef != nil {
		out.publishSecret = &corev1.SecretReference{Name: c.NodePublishSecretRef.Name}
	}
	return out
}

// specName is what upstream names a volume by: the persistent volume, or the name
// that the pod gives it.
func specName(s Source) string {
	if s.Persistent != nil && s.Persistent.Spec.CSI != nil {
		return s.Persistent.Name
	}
	return s.Volume.Name
}

// handle is what the driver calls the volume.
func (v *Volume) handle() string {
	if v.Persistent != nil {
		return v.Persistent.Spec.CSI.VolumeHandle
	}
	return csi.EphemeralHandle(string(v.Pod.UID), v.Volume.Name)
}

// Path implements driver.
func (csiDriver) Path(podDir string, s Source) string {
	return filepath.Join(podDir, "volumes", "kubernetes.io~csi", specName(s), "mount")
}

// Follows implements driver: whether a driver wants to be called again, its object
// tells, which Mount looks at.
func (csiDriver) Follows(Source) bool { return true }

// stagingPath is where the volume is staged.
func (d csiDriver) stagingPath(v *Volume) string {
	c := v.Persistent.Spec.CSI
	return filepath.Join(d.root, "plugins", csi.Plugin, c.Driver, csi.HandleDir(c.VolumeHandle), "globalmount")
}

// StagedAt implements stagingDriver.
func (d csiDriver) StagedAt(v *Volume) string { return d.stagingPath(v) }

// Stage implements driver.
func (d csiDriver) Stage(ctx context.Context, v *Volume) error {
	c := v.Persistent.Spec.CSI
	client, err := d.drivers.Client(c.Driver)
	if err != nil {
		return &Error{Step: "MountDevice",
			Err: fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: %w", err)}
	}
	can, err := client.Capabilities(ctx)
	if err != nil || !can.Stages {
		return inStep("MountDevice", err)
	}
	secrets, err := d.secrets(ctx, "NodeStageSecretRef", c.NodeStageSecretRef, "")
	if err != nil {
		return inStep("MountDevice", err)
	}
	path := d.stagingPath(v)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return inStep("MountDevice", err)
	}
	_, known := os.Lstat(dataFile(path))
	if err := writeData(path, map[string]string{"volumeHandle": c.VolumeHandle, "driverName": c.Driver}); err != nil {
		return inStep("MountDevice", err)
	}
	err = client.Stage(ctx, csi.Stage{
		Volume:         c.VolumeHandle,
		Path:           path,
		Use:            v.use(can.MountsForGroup),
		PublishContext: v.CSI.PublishContext,
		VolumeContext:  c.VolumeAttributes,
		Secrets:        secrets,
	})
	if err != nil && csi.Final(err) && known != nil {
		// Nothing came of the first try, so there is nothing to undo.
		return errors.Join(inStep("MountDevice", err), inStep("MountDevice", d.removeMount(path, false)))
	}
	return inStep("MountDevice", err)
}

// use is how the volume is to be used.
func (v *Volume) use(mountsForGroup bool) csi.Use {
	out := csi.Use{Access: corev1.ReadWriteOnce, FSType: csiOf(v.Source).fsType}
	if v.Persistent != nil {
		if modes := v.Persistent.Spec.AccessModes; len(modes) > 0 {
			out.Access = modes[0]
		}
		out.Flags = v.labelled(v.Persistent.Spec.MountOptions)
	}
	if mountsForGroup {
		out.Group = v.CSI.Group
	}
	return out
}

// Mount implements driver.
func (d csiDriver) Mount(ctx context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	now := time.Now()
	if v.CSI.published && (!v.CSI.republishes() || now.Before(v.CSI.next)) {
		return v.CSI.next, nil
	}
	if err := d.publish(ctx, p, v); err != nil {
		return time.Time{}, err
	}
	v.CSI.published = true
	if v.CSI.republishes() {
		v.CSI.next = now.Add(republishEach)
	}
	return v.CSI.next, nil
}

func (c *CSI) republishes() bool {
	return c.Spec != nil && c.Spec.RequiresRepublish != nil && *c.Spec.RequiresRepublish
}

// publish has the driver show the volume to the pod.
func (d csiDriver) publish(ctx context.Context, p *corev1.Pod, v *Volume) error {
	src := csiOf(v.Source)
	client, err := d.drivers.Client(src.driver)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: %w", err)
	}
	if err := v.supported(src.driver); err != nil {
		return fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: %w", err)
	}
	can, err := client.Capabilities(ctx)
	if err != nil {
		return err
	}
	secrets, err := d.secrets(ctx, "NodePublishSecretRef", src.publishSecret, p.Namespace)
	if err != nil {
		return err
	}
	attributes := maps.Clone(src.attributes)
	if v.CSI.Spec != nil {
		attributes, secrets, err = d.podInfo(ctx, p, v, v.CSI.Spec, attributes, secrets)
		if err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(v.Path), 0o750); err != nil {
		return err
	}
	_, known := os.Lstat(dataFile(v.Path))
	if err := writeData(v.Path, d.publishData(v, src.driver)); err != nil {
		return err
	}
	call := csi.Publish{
		Volume:         v.handle(),
		Path:           v.Path,
		Use:            v.use(can.MountsForGroup),
		ReadOnly:       src.readOnly,
		PublishContext: v.CSI.PublishContext,
		VolumeContext:  attributes,
		Secrets:        secrets,
	}
	if v.Persistent != nil && can.Stages {
		call.StagingPath = d.stagingPath(v)
	}
	if err := client.Publish(ctx, call); err != nil {
		if csi.Final(err) && known != nil {
			err = errors.Join(err, d.removeMount(v.Path, false))
		}
		return err
	}
	// Once: containers may set other rights afterwards.
	given := v.CSI.published || d.boot != "" && v.CSI.Boot == d.boot
	if group := fsGroup(p); group != nil && !can.MountsForGroup && v.givenToGroup(src) && !given {
		if err := own(v.Path, int(*group), changePolicy(p), d.log); err != nil {
			return fmt.Errorf("applyFSGroup failed for vol %s: %w", v.handle(), err)
		}
	}
	return nil
}

// supported tells why the driver makes no such volumes, nil when it does.
func (v *Volume) supported(driver string) error {
	mode := v.lifecycle()
	switch {
	case v.CSI.Spec == nil && mode == storagev1.VolumeLifecyclePersistent:
		return nil
	case v.CSI.Spec == nil:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, driver)
	}
	for _, m := range v.CSI.Spec.VolumeLifecycleModes {
		if m == mode {
			return nil
		}
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, driver,
		v.CSI.Spec.VolumeLifecycleModes)
}

func (v *Volume) lifecycle() storagev1.VolumeLifecycleMode {
	if v.Persistent == nil {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// givenToGroup tells whether the files of the volume are given to the pod's group.
func (v *Volume) givenToGroup(src *csiSource) bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if v.CSI.Spec != nil && v.CSI.Spec.FSGroupPolicy != nil {
		policy = *v.CSI.Spec.FSGroupPolicy
	}
	switch {
	case policy == storagev1.NoneFSGroupPolicy || src.readOnly:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case src.fsType == "":
		return false
	case v.Persistent == nil:
		return true
	}
	for _, m := range v.Persistent.Spec.AccessModes {
		if m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod {
			return true
		}
	}
	return false
}

// podInfo adds what the CSIDriver object asks for: who the pod is, and tokens of
// its service account.
func (d csiDriver) podInfo(ctx context.Context, p *corev1.Pod, v *Volume, spec *storagev1.CSIDriverSpec,
	attributes, secrets map[string]string) (map[string]string, map[string]string, error) {
	if attributes == nil {
		attributes = map[string]string{}
	}
	if spec.PodInfoOnMount != nil && *spec.PodInfoOnMount {
		maps.Copy(attributes, map[string]string{
			"csi.storage.k8s.io/pod.name":            p.Name,
			"csi.storage.k8s.io/pod.namespace":       p.Namespace,
			"csi.storage.k8s.io/pod.uid":             string(p.UID),
			"csi.storage.k8s.io/serviceAccount.name": p.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(v.Persistent == nil),
		})
	}
	if len(spec.TokenRequests) == 0 {
		return attributes, secrets, nil
	}
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range spec.TokenRequests {
		t, err := d.tokens.Bound(ctx, p, r.Audience, r.ExpirationSeconds)
		if err != nil {
			return nil, nil, fmt.Errorf(
				"kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: %w", err)
		}
		tokens[r.Audience] = authenticationv1.TokenRequestStatus{Token: t.Token,
			ExpirationTimestamp: metav1.NewTime(t.Expires.UTC())}
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return nil, nil, err
	}
	const key = "csi.storage.k8s.io/serviceAccount.tokens"
	if spec.ServiceAccountTokenInSecrets != nil && *spec.ServiceAccountTokenInSecrets {
		secrets[key] = string(text)
	} else {
		attributes[key] = string(text)
	}
	return attributes, secrets, nil
}

// secrets reads a Secret that a volume names; of one without a namespace it is the
// pod's.
func (d csiDriver) secrets(ctx context.Context, field string, ref *corev1.SecretReference, namespace string) (
	map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	s, err := d.objects.Secret(ctx, namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: kubernetes.io/csi: "+
			"failed to find the secret %s in the namespace %s with error: %w",
			field, namespace, ref.Name, ref.Name, namespace, err)
	}
	for key, value := range s.Data {
		out[key] = string(value)
	}
	return out, nil
}

// Unmount implements driver.
func (d csiDriver) Unmount(ctx context.Context, v *Volume) error {
	if _, err := os.Lstat(dataFile(v.Path)); errors.Is(err, fs.ErrNotExist) {
		return nil // the driver was never called
	}
	failed := func(err error) error {
		return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : "+
			"kubernetes.io/csi: Unmounter.TearDownAt failed: %w", specName(v.Source), err)
	}
	client, err := d.drivers.Client(csiOf(v.Source).driver)
	if err != nil {
		return failed(err)
	}
	if err := client.Unpublish(ctx, v.handle(), v.Path); err != nil {
		return failed(err)
	}
	v.CSI.published = false
	if err := d.removeMount(v.Path, true); err != nil {
		return failed(err)
	}
	return nil
}

// Unstage implements driver.
func (d csiDriver) Unstage(ctx context.Context, v *Volume) error {
	path := d.stagingPath(v)
	if _, err := os.Lstat(dataFile(path)); errors.Is(err, fs.ErrNotExist) {
		return nil // the driver was never called
	}
	failed := func(err error) error {
		return fmt.Errorf("UnmountDevice failed for volume %q : kubernetes.io/csi: attacher.UnmountDevice failed: %w",
			specName(v.Source), err)
	}
	client, err := d.drivers.Client(v.Persistent.Spec.CSI.Driver)
	if err != nil {
		return failed(err)
	}
	if err := client.Unstage(ctx, v.handle(), path); err != nil {
		return failed(err)
	}
	if err := d.removeMount(path, true); err != nil {
		return failed(err)
	}
	return nil
}

// inStep names the step that failed.
func inStep(step string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Step: step, Err: err}
}

// dataFile lies beside what a driver mounts.
func dataFile(path string) string { return filepath.Join(filepath.Dir(path), "vol_data.json") }

func (d csiDriver) publishData(v *Volume, driver string) map[string]string {
	return map[string]string{
		"specVolID":           specName(v.Source),
		"volumeHandle":        v.handle(),
		"driverName":          driver,
		"nodeName":            d.node,
		"volumeLifecycleMode": string(v.lifecycle()),
		"attachmentID":        csi.AttachmentName(v.handle(), driver, d.node),
	}
}

// writeData writes the data of a volume, all or nothing.
func writeData(path string, data map[string]string) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	name := dataFile(path)
	if err := os.WriteFile(name+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("kubernetes.io/csi: failed to save volume data file %s: %w", name, err)
	}
	return os.Rename(name+".new", name)
}

// removeMount removes where something was mounted, with the data beside it. What a
// driver says that it has undone and has not, is unmounted; files are never
// removed: they would be the volume's.
func (d csiDriver) removeMount(path string, undone bool) error {
	if undone {
		if err := d.mounts.UnmountUnder(path); err != nil {
			return err
		}
	} else if is, err := mounted(path); err != nil || is {
		return err
	}
	dir := filepath.Dir(path)
	for _, name := range []string{path, dataFile(path) + ".new", dataFile(path), dir} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
