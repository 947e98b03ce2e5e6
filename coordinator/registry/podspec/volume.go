package podspec

import (
	"fmt"
	"path"
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

// validateVolumes fills s.volumes with the sound volumes by name.
func (s *scope) validateVolumes(p *field.Path) (errs field.ErrorList) {
	s.volumes = make(map[string]*corev1.VolumeSource, len(s.spec.Volumes))
	for i := range s.spec.Volumes {
		v, at := &s.spec.Volumes[i], p.Index(i)
		bad := validateVolumeSource(&v.VolumeSource, at, s.inPod())
		if v.Name == "" {
			bad = append(bad, field.Required(at.Child("name"), ""))
		} else {
			bad = append(bad, dnsLabel(v.Name, at.Child("name"))...)
		}
		if s.inPod() && s.meta.Name != "" && v.Name != "" && firstSource(&v.VolumeSource) == "Ephemeral" {
			for _, msg := range apivalidation.NameIsDNSSubdomain(s.meta.Name+"-"+v.Name, false) {
				bad = append(bad,
					field.Invalid(at.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", s.meta.Name+"-"+v.Name, msg)))
			}
		}
		if _, taken := s.volumes[v.Name]; taken {
			bad = append(bad, field.Duplicate(at.Child("name"), v.Name))
		}
		if len(bad) == 0 {
			s.volumes[v.Name] = &v.VolumeSource
		}
		errs = append(errs, bad...)
		if s.makesClaim(v.PersistentVolumeClaim) {
			errs = append(errs,
				field.Invalid(at.Child("persistentVolumeClaim", "claimName"), v.PersistentVolumeClaim.ClaimName,
					"must not reference a PVC that gets created for an ephemeral volume"))
		}
	}
	if s.inPod() && s.spec.ServiceAccountName == "" {
		errs = append(errs, s.refuseTokens(p)...)
	}
	return errs
}

// makesClaim tells whether a claim is one that the pod's own ephemeral volume
// will create.
func (s *scope) makesClaim(c *corev1.PersistentVolumeClaimVolumeSource) bool {
	if c == nil || !s.inPod() || s.meta.Name == "" {
		return false
	}
	for i := range s.spec.Volumes {
		if v := &s.spec.Volumes[i]; v.Ephemeral != nil && c.ClaimName == s.meta.Name+"-"+v.Name {
			return true
		}
	}
	return false
}

func (s *scope) refuseTokens(p *field.Path) (errs field.ErrorList) {
	for i := range s.spec.Volumes {
		if s.spec.Volumes[i].Projected == nil {
			continue
		}
		for j, source := range s.spec.Volumes[i].Projected.Sources {
			if source.ServiceAccountToken != nil {
				errs = append(errs, field.Forbidden(p.Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken"),
					"must not be specified when serviceAccountName is not set"))
			}
		}
	}
	return errs
}

// sourceOrder is the order in which upstream looks at the sources of a volume, by the
// names of the Go fields: the first that is given is checked, any other is one too many.
var sourceOrder = []string{
	"EmptyDir", "HostPath", "GitRepo", "GCEPersistentDisk", "AWSElasticBlockStore", "Secret", "NFS", "ISCSI",
	"Glusterfs", "Flocker", "PersistentVolumeClaim", "RBD", "Cinder", "CephFS", "Quobyte", "DownwardAPI", "FC",
	"FlexVolume", "ConfigMap", "AzureFile", "VsphereVolume", "PhotonPersistentDisk", "PortworxVolume", "AzureDisk",
	"StorageOS", "Projected", "ScaleIO", "CSI", "Ephemeral", "Image",
}

// ValidateVolumeSource checks that exactly one source is given and is sound.
func ValidateVolumeSource(s *corev1.VolumeSource, p *field.Path) field.ErrorList {
	return validateVolumeSource(s, p, true)
}

// firstSource is the source that is checked; "" for none.
func firstSource(s *corev1.VolumeSource) string {
	v := reflect.ValueOf(s).Elem()
	for _, f := range sourceOrder {
		if !v.FieldByName(f).IsNil() {
			return f
		}
	}
	return ""
}

// validateVolumeSource lets a template leave an image's reference open.
func validateVolumeSource(s *corev1.VolumeSource, p *field.Path, inPod bool) (errs field.ErrorList) {
	n := 0
	if s.EmptyDir != nil {
		n++
		if limit := s.EmptyDir.SizeLimit; limit != nil && limit.Sign() < 0 {
			errs = append(errs, field.Forbidden(p.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity"))
		}
	}
	v := reflect.ValueOf(s).Elem()
	for _, f := range sourceOrder[1:] {
		if v.FieldByName(f).IsNil() {
			continue
		}
		name := JSONName(v.Type(), f)
		if n > 0 {
			errs = append(errs, field.Forbidden(p.Child(SecondSource(name)), "may not specify more than 1 volume type"))
			continue
		}
		n++
		if name != "image" || inPod || s.Image.Reference != "" {
			at := name
			if name == "gcePersistentDisk" {
				at = "persistentDisk" // upstream's name for the place
			}
			errs = append(errs, validateSource(name, s, p.Child(at))...)
			continue
		}
		errs = append(errs, validatePullPolicy(s.Image.PullPolicy, p.Child(name, "pullPolicy"))...)
	}
	if n == 0 {
		errs = append(errs, field.Required(p, "must specify a volume type"))
	}
	return errs
}

// JSONName is the name in JSON of a field of a struct.
func JSONName(t reflect.Type, goName string) string {
	f, _ := t.FieldByName(goName)
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// SecondSource is how upstream names the place of a volume's source, of the given
// JSON name, that stands beside another: two of them are not as in JSON. Clients see
// these names as fields of causes.
func SecondSource(name string) string {
	switch name {
	case "cephfs":
		return "cephFS"
	case "downwardAPI":
		return "downwarAPI"
	}
	return name
}

// validateSource checks the source of the given JSON name; p is its path.
func validateSource(name string, s *corev1.VolumeSource, p *field.Path) field.ErrorList {
	switch name {
	case "hostPath":
		return validateHostPath(s.HostPath, p)
	case "secret":
		errs := append(required(s.Secret.SecretName, p.Child("secretName")),
			fileMode(s.Secret.DefaultMode, p.Child("defaultMode"))...)
		return append(errs, validateItems(s.Secret.Items, p.Child("items"))...)
	case "configMap":
		errs := append(required(s.ConfigMap.Name, p.Child("name")),
			fileMode(s.ConfigMap.DefaultMode, p.Child("defaultMode"))...)
		return append(errs, validateItems(s.ConfigMap.Items, p.Child("items"))...)
	case "downwardAPI":
		errs := fileMode(s.DownwardAPI.DefaultMode, p.Child("defaultMode"))
		for i := range s.DownwardAPI.Items {
			errs = append(errs, validateDownwardFile(&s.DownwardAPI.Items[i], p)...)
		}
		return errs
	case "projected":
		return validateProjected(s.Projected, p)
	case "persistentVolumeClaim":
		return required(s.PersistentVolumeClaim.ClaimName, p.Child("claimName"))
	case "csi":
		return validateCSI(s.CSI, p)
	case "ephemeral":
		return validateEphemeralClaim(s.Ephemeral, p)
	case "image":
		return append(required(s.Image.Reference, p.Child("reference")),
			validatePullPolicy(s.Image.PullPolicy, p.Child("pullPolicy"))...)
	case "nfs":
		errs := append(required(s.NFS.Server, p.Child("server")), required(s.NFS.Path, p.Child("path"))...)
		if !path.IsAbs(s.NFS.Path) {
			errs = append(errs, field.Invalid(p.Child("path"), s.NFS.Path, "must be an absolute path"))
		}
		return errs
	case "iscsi":
		return validateISCSI(s.ISCSI, "must be valid format starting with iqn, eui, or naa", p)
	}
	return validateLegacySource(name, s, p)
}

func validatePullPolicy(policy corev1.PullPolicy, p *field.Path) field.ErrorList {
	return OneOf(policy, p, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

// validateLegacySource checks what in-tree drivers of the past must have.
func validateLegacySource(name string, s *corev1.VolumeSource, p *field.Path) (errs field.ErrorList) {
	need := func(child, value string) { errs = append(errs, required(value, p.Child(child))...) }
	switch name {
	case "fc":
		return validateFC(s.FC, p)
	case "flocker":
		return validateFlocker(s.Flocker, p)
	case "azureDisk":
		return validateAzureDisk(s.AzureDisk, p)
	case "quobyte":
		return validateQuobyte(s.Quobyte, p)
	case "scaleIO":
		need("gateway", s.ScaleIO.Gateway)
		need("system", s.ScaleIO.System)
		need("volumeName", s.ScaleIO.VolumeName)
	case "storageos":
		errs = ValidateStorageOS(s.StorageOS.VolumeName, s.StorageOS.VolumeNamespace, p)
		if s.StorageOS.SecretRef != nil {
			errs = append(errs, required(s.StorageOS.SecretRef.Name, p.Child("secretRef", "name"))...)
		}
	case "photonPersistentDisk":
		need("pdID", s.PhotonPersistentDisk.PdID)
	case "gitRepo":
		need("repository", s.GitRepo.Repository)
		errs = append(errs, relativePath(s.GitRepo.Directory, p.Child("directory"))...)
	case "gcePersistentDisk":
		need("pdName", s.GCEPersistentDisk.PDName)
		errs = append(errs, validatePartition(s.GCEPersistentDisk.Partition, p.Child("partition"))...)
	case "awsElasticBlockStore":
		need("volumeID", s.AWSElasticBlockStore.VolumeID)
		errs = append(errs, validatePartition(s.AWSElasticBlockStore.Partition, p.Child("partition"))...)
	case "glusterfs":
		need("endpoints", s.Glusterfs.EndpointsName)
		need("path", s.Glusterfs.Path)
	case "rbd":
		if len(s.RBD.CephMonitors) == 0 {
			errs = append(errs, field.Required(p.Child("monitors"), ""))
		}
		need("image", s.RBD.RBDImage)
	case "cinder":
		need("volumeID", s.Cinder.VolumeID)
		if s.Cinder.SecretRef != nil {
			errs = append(errs, required(s.Cinder.SecretRef.Name, p.Child("secretRef", "name"))...)
		}
	case "cephfs":
		if len(s.CephFS.Monitors) == 0 {
			errs = append(errs, field.Required(p.Child("monitors"), ""))
		}
	case "flexVolume":
		need("driver", s.FlexVolume.Driver)
		errs = append(errs, ValidateFlexOptions(s.FlexVolume.Options, p.Child("options"))...)
	case "azureFile":
		need("secretName", s.AzureFile.SecretName)
		need("shareName", s.AzureFile.ShareName)
	case "vsphereVolume":
		need("volumePath", s.VsphereVolume.VolumePath)
	case "portworxVolume":
		need("volumeID", s.PortworxVolume.VolumeID)
	}
	return errs
}

func validateHostPath(h *corev1.HostPathVolumeSource, p *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(p.Child("path"), "")}
	}
	errs := noBacksteps(h.Path, p.Child("path"))
	return append(errs, Among(ptr.Deref(h.Type, ""), p.Child("type"),
		corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
		corev1.HostPathDirectoryOrCreate,
		corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)...)
}

// validateISCSI checks an iSCSI source; otherName is what is wrong with a name of no known
// type.
func validateISCSI(s *corev1.ISCSIVolumeSource, otherName string, p *field.Path) field.ErrorList {
	errs := append(required(s.TargetPortal, p.Child("targetPortal")), required(s.IQN, p.Child("iqn"))...)
	if s.IQN != "" {
		errs = append(errs, ValidateISCSIName(s.IQN, otherName, p.Child("iqn"))...)
	}
	if s.Lun < 0 || s.Lun > 255 {
		errs = append(errs, field.Invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255)))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		errs = append(errs, field.Required(p.Child("secretRef"), ""))
	}
	if s.InitiatorName != nil {
		errs = append(errs, ValidateISCSIName(*s.InitiatorName, otherName, p.Child("initiatorname"))...)
	}
	return errs
}

// iscsiNames are the types of iSCSI names (RFC 3720, 3.2.6.3), by what they start with,
// with what upstream asks of each.
var iscsiNames = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

// ValidateISCSIName checks the name of a target or an initiator.
func ValidateISCSIName(name, otherName string, p *field.Path) field.ErrorList {
	form, known := iscsiNames[name[:min(3, len(name))]]
	if !known {
		return field.ErrorList{field.Invalid(p, name, otherName)}
	}
	if !form.MatchString(name) {
		return field.ErrorList{field.Invalid(p, name, "must be valid format")}
	}
	return nil
}

func validateItems(items []corev1.KeyToPath, p *field.Path) (errs field.ErrorList) {
	for i := range items {
		at := p.Index(i)
		errs = append(errs, required(items[i].Key, at.Child("key"))...)
		errs = append(errs, required(items[i].Path, at.Child("path"))...)
		errs = append(errs, unreservedPath(items[i].Path, at.Child("path"))...)
		errs = append(errs, fileMode(items[i].Mode, at.Child("mode"))...)
	}
	return errs
}

func validateDownwardFile(f *corev1.DownwardAPIVolumeFile, p *field.Path) field.ErrorList {
	errs := append(required(f.Path, p.Child("path")), unreservedPath(f.Path, p.Child("path"))...)
	switch {
	case f.FieldRef != nil:
		errs = append(errs, validateFieldRef(f.FieldRef, volumeFields, p.Child("fieldRef"))...)
		if f.ResourceFieldRef != nil {
			errs = append(errs, field.Invalid(p, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		}
	case f.ResourceFieldRef != nil:
		errs = append(errs, validateResourceRef(f.ResourceFieldRef, p.Child("resourceFieldRef"), true)...)
	default:
		errs = append(errs, field.Required(p, "one of fieldRef and resourceFieldRef is required"))
	}
	return append(errs, fileMode(f.Mode, p.Child("mode"))...)
}

// projection collects the paths of a projected volume's sources, which must
// not collide.
type projection struct {
	at    *field.Path
	paths sets.Set[string]
	errs  field.ErrorList
}

func (j *projection) path(path string, shown any) {
	if path == "" {
		return
	}
	if j.paths.Has(path) {
		j.errs = append(j.errs, field.Invalid(j.at, shown, "conflicting duplicate paths"))
	}
	j.paths.Insert(path)
}

func (j *projection) keys(name string, items []corev1.KeyToPath, p *field.Path) {
	j.errs = append(j.errs, required(name, p.Child("name"))...)
	j.errs = append(j.errs, validateItems(items, p.Child("items"))...)
	for i := range items {
		j.path(items[i].Path, name)
	}
}

func validateProjected(v *corev1.ProjectedVolumeSource, p *field.Path) field.ErrorList {
	j := &projection{at: p, paths: sets.New[string](), errs: fileMode(v.DefaultMode, p.Child("defaultMode"))}
	for i := range v.Sources {
		s, at, n := &v.Sources[i], p.Child("sources").Index(i), 0
		if s.Secret != nil {
			n++
			j.keys(s.Secret.Name, s.Secret.Items, at.Child("secret"))
		}
		if s.ConfigMap != nil {
			n++
			j.keys(s.ConfigMap.Name, s.ConfigMap.Items, at.Child("configMap"))
		}
		if s.DownwardAPI != nil {
			n++
			for k := range s.DownwardAPI.Items {
				f := &s.DownwardAPI.Items[k]
				j.errs = append(j.errs, validateDownwardFile(f, at.Child("downwardAPI"))...)
				j.path(f.Path, f.Path)
			}
		}
		if s.ServiceAccountToken != nil {
			n++
			j.token(s.ServiceAccountToken, at.Child("serviceAccountToken"))
		}
		if s.ClusterTrustBundle != nil {
			n++
			j.bundle(s.ClusterTrustBundle, at.Child("clusterTrustBundle"))
		}
		if s.PodCertificate != nil {
			n++
			j.certificate(s.PodCertificate, at.Child("podCertificate"))
		}
		if n > 1 {
			j.errs = append(j.errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
		}
	}
	return j.errs
}

func (j *projection) token(t *corev1.ServiceAccountTokenProjection, p *field.Path) {
	if seconds := ptr.Deref(t.ExpirationSeconds, 0); seconds < 600 {
		j.errs = append(j.errs, field.Invalid(p.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	} else if seconds > 1<<32 {
		j.errs = append(j.errs, field.Invalid(p.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if t.Path == "" {
		j.errs = append(j.errs, field.Required(j.at.Child("path"), ""))
	} else {
		j.errs = append(j.errs, unreservedPath(t.Path, j.at.Child("path"))...)
	}
}

func (j *projection) bundle(b *corev1.ClusterTrustBundleProjection, p *field.Path) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		j.errs = append(j.errs, field.Invalid(p, b, "only one of name and signerName may be used"))
	case b.Name != nil:
		if *b.Name == "" {
			j.errs = append(j.errs, field.Required(p.Child("name"), "must be a valid object name"))
		}
		if b.LabelSelector != nil {
			j.errs = append(j.errs, field.Invalid(p.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			j.errs = append(j.errs, field.Required(p.Child("signerName"), "must be a valid signer name"))
		}
		j.errs = append(j.errs, labelSelector(b.LabelSelector, p.Child("labelSelector"))...)
	default:
		j.errs = append(j.errs, field.Required(p, "either name or signerName must be specified"))
	}
	j.errs = append(j.errs, required(b.Path, p.Child("path"))...)
	j.errs = append(j.errs, unreservedPath(b.Path, p.Child("path"))...)
	j.path(b.Path, b.Path)
}

func (j *projection) certificate(c *corev1.PodCertificateProjection, p *field.Path) {
	j.errs = append(j.errs, required(c.SignerName, p.Child("signerName"))...)
	j.errs = append(j.errs,
		Among(c.KeyType, p.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")...)
	if seconds := c.MaxExpirationSeconds; seconds != nil && *seconds < 3600 {
		j.errs = append(j.errs, field.Invalid(p.Child("maxExpirationSeconds"), *seconds, "if provided, maxExpirationSeconds must be >= 3600"))
	}
	n := 0
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath},
		{"certificateChainPath", c.CertificateChainPath},
	} {
		if f.path != "" {
			n++
			j.errs = append(j.errs, unreservedPath(f.path, p.Child(f.name))...)
			j.path(f.path, f.path)
		}
	}
	if n == 0 {
		j.errs = append(j.errs, field.Required(p, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
}

func validateCSI(c *corev1.CSIVolumeSource, p *field.Path) field.ErrorList {
	errs := ValidateDriverName(c.Driver, p.Child("driver"))
	if ref := c.NodePublishSecretRef; ref != nil && ref.Name == "" {
		errs = append(errs, field.Required(p.Child("nodePublishSecretRef", "name"), ""))
	} else if ref != nil {
		errs = append(errs, dnsSubdomain(ref.Name, p.Child("name"))...)
	}
	return errs
}

// ValidateDriverName checks the name of a CSI driver: a domain of at most 63
// characters, upper case allowed.
func ValidateDriverName(name string, p *field.Path) (errs field.ErrorList) {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	if len(name) > 63 {
		errs = append(errs, field.TooLong(p, "", 63))
	}
	return append(errs, fieldrule.Invalid(p, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

func validateEphemeralClaim(e *corev1.EphemeralVolumeSource, p *field.Path) field.ErrorList {
	p = p.Child("volumeClaimTemplate")
	t := e.VolumeClaimTemplate
	if t == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	errs := ValidateTemplateMeta(&t.ObjectMeta, p.Child("metadata"))
	return append(errs, ValidateClaim(&t.Spec, p.Child("spec"))...)
}

// ValidateTemplateMeta checks the metadata that a claim made from a template
// will have: labels and annotations, and nothing else.
func ValidateTemplateMeta(m *metav1.ObjectMeta, p *field.Path) field.ErrorList {
	errs := apivalidation.ValidateAnnotations(m.Annotations, p.Child("annotations"))
	errs = append(errs, metavalidation.ValidateLabels(m.Labels, p.Child("labels"))...)
	return append(errs, onlyFields(*m, sets.New("Annotations", "Labels"), "cannot be set", p)...)
}

// ValidateClaim checks the spec of a persistent volume claim.
func ValidateClaim(s *corev1.PersistentVolumeClaimSpec, p *field.Path) (errs field.ErrorList) {
	modes := p.Child("accessModes")
	if len(s.AccessModes) == 0 {
		errs = append(errs, field.Required(modes, "at least 1 access mode is required"))
	}
	alone, shared := false, false
	for _, m := range s.AccessModes {
		errs = append(errs,
			Among(m, modes, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)...)
		alone, shared = alone || m == corev1.ReadWriteOncePod, shared || m == corev1.ReadOnlyMany ||
			m == corev1.ReadWriteMany || m == corev1.ReadWriteOnce
	}
	if alone && shared {
		errs = append(errs, field.Forbidden(modes, "may not use ReadWriteOncePod with other access modes"))
	}
	if s.Selector != nil {
		errs = append(errs, labelSelector(s.Selector, p.Child("selector"))...)
	}
	size, set := s.Resources.Requests[corev1.ResourceStorage]
	at := p.Child("resources").Key(string(corev1.ResourceStorage))
	if !set {
		errs = append(errs, field.Required(at, ""))
	} else if size.Sign() <= 0 {
		errs = append(errs, field.Invalid(at, size.String(), "must be greater than zero"))
	}
	if c := s.StorageClassName; c != nil && *c != "" {
		errs = append(errs, dnsSubdomain(*c, p.Child("storageClassName"))...)
	}
	if s.VolumeMode != nil {
		errs = append(errs,
			Among(*s.VolumeMode, p.Child("volumeMode"), corev1.PersistentVolumeBlock,
				corev1.PersistentVolumeFilesystem)...)
	}
	errs = append(errs, validateDataSources(s, p)...)
	if c := s.VolumeAttributesClassName; c != nil && *c != "" {
		errs = append(errs, dnsSubdomain(*c, p.Child("volumeAttributesClassName"))...)
	}
	return errs
}

// validateDataSources checks what a claim's volume is filled from (KEP-1495).
func validateDataSources(s *corev1.PersistentVolumeClaimSpec, p *field.Path) (errs field.ErrorList) {
	if d := s.DataSource; d != nil {
		errs = append(errs, validateDataSource(d.APIGroup, d.Kind, d.Name, p.Child("dataSource"))...)
	}
	r := s.DataSourceRef
	if r == nil {
		return errs
	}
	at := p.Child("dataSourceRef")
	errs = append(errs, validateDataSource(r.APIGroup, r.Kind, r.Name, at)...)
	if ns := ptr.Deref(r.Namespace, ""); ns != "" {
		errs = append(errs, dnsLabel(ns, at.Child("namespace"))...)
		if s.DataSource != nil {
			errs = append(errs, field.Invalid(p, p.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified"))
		}
	} else if d := s.DataSource; d != nil &&
		(d.Kind != r.Kind || d.Name != r.Name || ptr.Deref(d.APIGroup, "") != ptr.Deref(r.APIGroup, "")) {
		errs = append(errs, field.Invalid(p, p.Child("dataSource"), "must match dataSourceRef"))
	}
	return errs
}

func validateDataSource(group *string, kind, name string, p *field.Path) field.ErrorList {
	errs := append(required(name, p.Child("name")), required(kind, p.Child("kind"))...)
	if ptr.Deref(group, "") == "" && kind != "PersistentVolumeClaim" {
		errs = append(errs, field.Invalid(p, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
	}
	if ptr.Deref(group, "") != "" {
		errs = append(errs, subdomainMessages(*group, p.Child("apiGroup"))...)
	}
	return errs
}

func labelSelector(s *metav1.LabelSelector, p *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, p)
}
