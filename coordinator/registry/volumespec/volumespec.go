package volumespec

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

const notInline = "may not be specified in the context of inline volumes"

var (
	accessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany,
		corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
	policies = []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain}
	volumeModes = []corev1.PersistentVolumeMode{corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem}
)

// Default fills the unset fields of a PersistentVolume's spec.
func Default(s *corev1.PersistentVolumeSpec) {
	if s.PersistentVolumeReclaimPolicy == "" {
		s.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	if s.VolumeMode == nil {
		mode := corev1.PersistentVolumeFilesystem
		s.VolumeMode = &mode
	}
	DefaultInline(s)
	if i := s.ISCSI; i != nil && i.ISCSIInterface == "" {
		i.ISCSIInterface = "default"
	}
	if s.AzureDisk != nil {
		podspec.DefaultVolume(&corev1.Volume{VolumeSource: corev1.VolumeSource{AzureDisk: s.AzureDisk}})
	}
	if r := s.RBD; r != nil {
		fieldrule.DefaultEmpty(&r.RBDPool, "rbd")
		fieldrule.DefaultEmpty(&r.RadosUser, "admin")
		fieldrule.DefaultEmpty(&r.Keyring, "/etc/ceph/keyring")
	}
	if i := s.ScaleIO; i != nil {
		fieldrule.DefaultEmpty(&i.StorageMode, "ThinProvisioned")
		fieldrule.DefaultEmpty(&i.FSType, "xfs")
	}
}

// DefaultInline fills what is filled in an attachment's inline spec too.
func DefaultInline(s *corev1.PersistentVolumeSpec) {
	podspec.RoundResources(s.Capacity)
	if h := s.HostPath; h != nil && h.Type == nil {
		unset := corev1.HostPathUnset
		h.Type = &unset
	}
}

// Validate checks the spec of the PersistentVolume of this name.
func Validate(s *corev1.PersistentVolumeSpec, name string, p *field.Path) (errs field.ErrorList) {
	errs = append(validateAccess(s, p), validateCapacity(s.Capacity, p.Child("capacity"))...)
	if r := s.PersistentVolumeReclaimPolicy; r != "" && !slices.Contains(policies, r) {
		errs = append(errs, field.NotSupported(p.Child("persistentVolumeReclaimPolicy"), r, policies))
	}
	if a := s.NodeAffinity; a != nil && a.Required != nil {
		errs = append(errs, podspec.ValidateNodeSelector(a.Required, p.Child("nodeAffinity", "required"))...)
	} else if a != nil {
		errs = append(errs, field.Required(p.Child("nodeAffinity", "required"), "must specify required node constraints"))
	}
	errs = append(errs, validateSources(s, name, p)...)
	if s.StorageClassName != "" {
		errs = append(errs, className(s.StorageClassName, p.Child("storageClassName"))...)
	}
	if s.VolumeMode != nil && !slices.Contains(volumeModes, *s.VolumeMode) {
		errs = append(errs, field.NotSupported(p.Child("volumeMode"), *s.VolumeMode, volumeModes))
	}
	return append(errs, validateAttributesClass(s, p)...)
}

// ValidateInline checks a spec that stands in a VolumeAttachment: CSI only, and
// nothing that speaks of claims.
func ValidateInline(s *corev1.PersistentVolumeSpec, p *field.Path) (errs field.ErrorList) {
	forbid := func(is bool, child, message string) {
		if is {
			errs = append(errs, field.Forbidden(p.Child(child), message))
		}
	}
	forbid(s.ClaimRef != nil, "claimRef", notInline)
	forbid(len(s.Capacity) != 0, "capacity", notInline)
	if s.CSI == nil {
		errs = append(errs, field.Required(p.Child("csi"), "has to be specified in the context of inline volumes"))
	}
	errs = append(errs, validateAccess(s, p)...)
	r := s.PersistentVolumeReclaimPolicy
	forbid(r != "" && r != corev1.PersistentVolumeReclaimRetain, "persistentVolumeReclaimPolicy", "may only be Retain in the context of inline volumes")
	forbid(s.NodeAffinity != nil, "nodeAffinity", notInline)
	errs = append(errs, validateSources(s, "", p)...)
	forbid(s.StorageClassName != "", "storageClassName", notInline)
	forbid(s.VolumeMode != nil && *s.VolumeMode != corev1.PersistentVolumeFilesystem, "volumeMode",
		"may not specify volumeMode other than Filesystem in the context of inline volumes")
	return errs
}

func validateAccess(s *corev1.PersistentVolumeSpec, p *field.Path) (errs field.ErrorList) {
	p = p.Child("accessModes")
	if len(s.AccessModes) == 0 {
		errs = append(errs, field.Required(p, ""))
	}
	alone, shared := false, false
	for _, m := range s.AccessModes {
		if !slices.Contains(accessModes, m) {
			errs = append(errs, field.NotSupported(p, m, accessModes))
			continue
		}
		alone, shared = alone || m == corev1.ReadWriteOncePod, shared || m != corev1.ReadWriteOncePod
	}
	if alone && shared {
		errs = append(errs, field.Forbidden(p, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

func validateCapacity(list corev1.ResourceList, p *field.Path) (errs field.ErrorList) {
	if len(list) == 0 {
		errs = append(errs, field.Required(p, ""))
	}
	if _, ok := list[corev1.ResourceStorage]; !ok || len(list) > 1 {
		errs = append(errs, field.NotSupported(p, list, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for name, q := range list {
		if q.Value() < 0 { // also what is beyond an int64
			errs = append(errs, field.Invalid(p.Key(string(name)), q.Value(), "must be a valid resource quantity"))
		}
		if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(p.Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
	return errs
}

func validateAttributesClass(s *corev1.PersistentVolumeSpec, p *field.Path) (errs field.ErrorList) {
	name := s.VolumeAttributesClassName
	if name == nil {
		return nil
	}
	if *name == "" {
		errs = append(errs, field.Required(p.Child("volumeAttributesClassName"), "an empty string is disallowed"))
	} else {
		errs = append(errs, className(*name, p.Child("volumeAttributesClassName"))...)
	}
	if s.CSI == nil {
		errs = append(errs, field.Required(p.Child("csi"), "has to be specified when using volumeAttributesClassName"))
	}
	return errs
}

// sourceOrder is the order in which upstream looks at the sources of a persistent volume,
// by the names of the Go fields.
var sourceOrder = []string{
	"HostPath", "GCEPersistentDisk", "AWSElasticBlockStore", "Glusterfs", "Flocker", "NFS", "RBD", "Quobyte", "CephFS",
	"ISCSI", "Cinder", "FC", "FlexVolume", "AzureFile", "VsphereVolume", "PhotonPersistentDisk", "PortworxVolume",
	"AzureDisk", "ScaleIO", "Local", "StorageOS", "CSI",
}

// validateSources checks that there is one source and that it is sound.
func validateSources(s *corev1.PersistentVolumeSpec, name string, p *field.Path) (errs field.ErrorList) {
	v, n := reflect.ValueOf(&s.PersistentVolumeSource).Elem(), 0
	for _, f := range sourceOrder {
		if v.FieldByName(f).IsNil() {
			continue
		}
		source := podspec.JSONName(v.Type(), f)
		if n++; n > 1 && f != "FlexVolume" { // which upstream looks at for itself
			errs = append(errs, field.Forbidden(p.Child(podspec.SecondSource(source)), "may not specify more than 1 volume type"))
			continue
		}
		errs = append(errs, validateSource(s, source, name, p)...)
	}
	if n == 0 {
		errs = append(errs, field.Required(p, "must specify a volume type"))
	}
	if s.HostPath != nil && path.Clean(s.HostPath.Path) == "/" &&
		s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	return errs
}

// validateSource checks the source of this JSON name, p being the spec's path.
func validateSource(s *corev1.PersistentVolumeSpec, source, name string, p *field.Path) (errs field.ErrorList) {
	at := p.Child(source)
	need := func(child, value string) {
		if value == "" {
			errs = append(errs, field.Required(at.Child(child), ""))
		}
	}
	switch source {
	case "csi":
		return validateCSI(s.CSI, at)
	case "local":
		need("path", s.Local.Path)
		if slices.Contains(strings.Split(s.Local.Path, "/"), "..") {
			errs = append(errs, field.Invalid(at.Child("path"), s.Local.Path, "must not contain '..'"))
		}
		if s.NodeAffinity == nil {
			errs = append(errs, field.Required(p.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	case "iscsi":
		return validateISCSI(s.ISCSI, name, at)
	case "glusterfs":
		need("endpoints", s.Glusterfs.EndpointsName)
		need("path", s.Glusterfs.Path)
		if ns := s.Glusterfs.EndpointsNamespace; ns != nil && *ns == "" {
			errs = append(errs, field.Invalid(at.Child("endpointsNamespace"), *ns,
				"if the endpointnamespace is set, it must be a valid namespace name"))
		} else if ns != nil {
			errs = append(errs, fieldrule.Invalid(at.Child("endpointsNamespace"), *ns,
				apivalidation.ValidateNamespaceName(*ns, false))...)
		}
	case "rbd":
		if len(s.RBD.CephMonitors) == 0 {
			need("monitors", "")
		}
		need("image", s.RBD.RBDImage)
	case "cephfs":
		if len(s.CephFS.Monitors) == 0 {
			need("monitors", "")
		}
	case "cinder":
		need("volumeID", s.Cinder.VolumeID)
		errs = append(errs, requireReference(s.Cinder.SecretRef, at.Child("secretRef"))...)
	case "flexVolume":
		need("driver", s.FlexVolume.Driver)
		errs = append(errs, podspec.ValidateFlexOptions(s.FlexVolume.Options, at.Child("options"))...)
	case "azureFile":
		need("secretName", s.AzureFile.SecretName)
		need("shareName", s.AzureFile.ShareName)
		if ns := s.AzureFile.SecretNamespace; ns != nil {
			need("secretNamespace", *ns)
		}
	case "scaleIO":
		need("gateway", s.ScaleIO.Gateway)
		need("system", s.ScaleIO.System)
		need("volumeName", s.ScaleIO.VolumeName)
	case "storageos":
		v := s.StorageOS
		errs = podspec.ValidateStorageOS(v.VolumeName, v.VolumeNamespace, at)
		if v.SecretRef != nil {
			ref := &corev1.SecretReference{Name: v.SecretRef.Name, Namespace: v.SecretRef.Namespace}
			errs = append(errs, requireReference(ref, at.Child("secretRef"))...)
		}
	default:
		return podspec.ValidateVolumeSource(shared(&s.PersistentVolumeSource, source), p)
	}
	return errs
}

// shared is the source of a JSON name, of those that a pod's volume can have in the
// same form.
func shared(s *corev1.PersistentVolumeSource, source string) *corev1.VolumeSource {
	out := &corev1.VolumeSource{
		HostPath: s.HostPath, NFS: s.NFS, FC: s.FC, GCEPersistentDisk: s.GCEPersistentDisk,
		AWSElasticBlockStore: s.AWSElasticBlockStore,
		Quobyte:              s.Quobyte, Flocker: s.Flocker, AzureDisk: s.AzureDisk, VsphereVolume: s.VsphereVolume,
		PhotonPersistentDisk: s.PhotonPersistentDisk, PortworxVolume: s.PortworxVolume,
	}
	v := reflect.ValueOf(out).Elem()
	for i := range v.NumField() {
		if podspec.JSONName(v.Type(), v.Type().Field(i).Name) != source {
			v.Field(i).SetZero()
		}
	}
	return out
}

func validateCSI(c *corev1.CSIPersistentVolumeSource, p *field.Path) field.ErrorList {
	errs := podspec.ValidateDriverName(c.Driver, p.Child("driver"))
	if c.VolumeHandle == "" {
		errs = append(errs, field.Required(p.Child("volumeHandle"), ""))
	}
	for _, r := range []struct {
		name string
		ref  *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", c.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", c.ControllerExpandSecretRef},
		{"nodePublishSecretRef", c.NodePublishSecretRef}, {"nodeExpandSecretRef", c.NodeExpandSecretRef},
	} {
		errs = append(errs, validateReference(r.ref, p.Child(r.name))...)
	}
	return errs
}

// requireReference wants both names of a reference, of any form.
func requireReference(r *corev1.SecretReference, p *field.Path) (errs field.ErrorList) {
	if r != nil && r.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), ""))
	}
	if r != nil && r.Namespace == "" {
		errs = append(errs, field.Required(p.Child("namespace"), ""))
	}
	return errs
}

func validateReference(r *corev1.SecretReference, p *field.Path) (errs field.ErrorList) {
	if r == nil {
		return nil
	}
	if r.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), ""))
	} else {
		errs = append(errs, fieldrule.Invalid(p.Child("name"), r.Name, validation.IsDNS1123Subdomain(r.Name))...)
	}
	if r.Namespace == "" {
		return append(errs, field.Required(p.Child("namespace"), ""))
	}
	return append(errs, fieldrule.Invalid(p.Child("namespace"), r.Namespace, validation.IsDNS1123Label(r.Namespace))...)
}

func validateISCSI(s *corev1.ISCSIPersistentVolumeSource, name string, p *field.Path) (errs field.ErrorList) {
	const form = "must be valid format"
	errs = append(errs, need(s.TargetPortal, p.Child("targetPortal"))...)
	if s.InitiatorName != nil && len(name+":"+s.TargetPortal) > 64 {
		errs = append(errs, field.Invalid(p.Child("targetportal"), s.TargetPortal,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."))
	}
	if errs = append(errs, need(s.IQN, p.Child("iqn"))...); s.IQN != "" {
		errs = append(errs, podspec.ValidateISCSIName(s.IQN, form, p.Child("iqn"))...)
	}
	if s.Lun < 0 || s.Lun > 255 {
		errs = append(errs, field.Invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255)))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		errs = append(errs, field.Required(p.Child("secretRef"), ""))
	}
	if s.SecretRef != nil {
		errs = append(errs, need(s.SecretRef.Name, p.Child("secretRef", "name"))...)
	}
	if s.InitiatorName != nil {
		errs = append(errs, podspec.ValidateISCSIName(*s.InitiatorName, form, p.Child("initiatorname"))...)
	}
	return errs
}

func need(value string, p *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return nil
}

// mountOptions are kept in an annotation by few kinds of volume only.
func takesMountOptions(s *corev1.PersistentVolumeSource) bool {
	return s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil ||
		s.NFS != nil || s.RBD != nil ||
		s.Quobyte != nil || s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil ||
		s.VsphereVolume != nil ||
		s.AzureDisk != nil || s.PhotonPersistentDisk != nil
}

// ValidateAnnotations checks what a PersistentVolume's annotations say of mounting.
func ValidateAnnotations(meta *metav1.ObjectMeta, s *corev1.PersistentVolumeSpec) field.ErrorList {
	if _, ok := meta.Annotations[corev1.MountOptionAnnotation]; !ok || takesMountOptions(&s.PersistentVolumeSource) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations", corev1.MountOptionAnnotation),
		"may not specify mount options for this volume type")}
}

// Warnings tells what of a PersistentVolume is out of date, in upstream's words.
func Warnings(meta *metav1.ObjectMeta, s *corev1.PersistentVolumeSpec) (out []string) {
	add := func(is bool, p *field.Path, message string) {
		if is {
			out = append(out, fmt.Sprintf("%s: %s", p, message))
		}
	}
	for _, a := range []struct{ key, message string }{
		{corev1.BetaStorageClassAnnotation, `deprecated since v1.8; use "storageClassName" attribute instead`},
		{corev1.MountOptionAnnotation, `deprecated since v1.31; use "mountOptions" attribute instead`},
	} {
		_, ok := meta.Annotations[a.key]
		add(ok, field.NewPath("metadata", "annotations").Key(a.key), a.message)
	}
	p := field.NewPath("spec")
	add(s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle, p.Child("persistentVolumeReclaimPolicy"),
		"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	if s.NodeAffinity != nil && s.NodeAffinity.Required != nil {
		for i := range s.NodeAffinity.Required.NodeSelectorTerms {
			out = append(out, podspec.NodeTermWarnings(&s.NodeAffinity.Required.NodeSelectorTerms[i], false,
				p.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i))...)
		}
	}
	add(s.CephFS != nil, p.Child("cephfs"), "deprecated in v1.28, non-functional in v1.31+")
	add(s.PhotonPersistentDisk != nil, p.Child("photonPersistentDisk"), "deprecated in v1.11, non-functional in v1.16+")
	add(s.ScaleIO != nil, p.Child("scaleIO"), "deprecated in v1.16, non-functional in v1.22+")
	add(s.StorageOS != nil, p.Child("storageOS"), "deprecated in v1.22, non-functional in v1.25+")
	add(s.Glusterfs != nil, p.Child("glusterfs"), "deprecated in v1.25, non-functional in v1.26+")
	add(s.RBD != nil, p.Child("rbd"), "deprecated in v1.28, non-functional in v1.31+")
	return out
}

func className(name string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, name, apivalidation.NameIsDNSSubdomain(name, false))
}
