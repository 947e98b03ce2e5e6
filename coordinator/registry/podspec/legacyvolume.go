package podspec

import (
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The drivers of these volumes are gone; objects that name them are checked as
// ever, for who migrates to CSI reads them.

func validatePartition(n int32, p *field.Path) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(p, n, validation.InclusiveRangeError(1, 255))}
	}
	return nil
}

func validateFC(v *corev1.FCVolumeSource, p *field.Path) (errs field.ErrorList) {
	names := p.Child("targetWWNs")
	switch {
	case len(v.TargetWWNs) == 0 && len(v.WWIDs) == 0:
		return field.ErrorList{field.Required(names, "must specify either targetWWNs or wwids, but not both")}
	case len(v.TargetWWNs) == 0:
		return nil
	case len(v.WWIDs) != 0:
		errs = append(errs, field.Invalid(names, v.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	}
	if v.Lun == nil {
		return append(errs, field.Required(p.Child("lun"), "lun is required if targetWWNs is specified"))
	}
	if *v.Lun < 0 || *v.Lun > 255 {
		errs = append(errs, field.Invalid(p.Child("lun"), *v.Lun, validation.InclusiveRangeError(0, 255)))
	}
	return errs
}

func validateFlocker(v *corev1.FlockerVolumeSource, p *field.Path) (errs field.ErrorList) {
	switch {
	case v.DatasetName == "" && v.DatasetUUID == "":
		return field.ErrorList{field.Required(p, "one of datasetName and datasetUUID is required")}
	case v.DatasetName != "" && v.DatasetUUID != "":
		errs = append(errs, field.Invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(v.DatasetName, "/") {
		errs = append(errs, field.Invalid(p.Child("datasetName"), v.DatasetName, "must not contain '/'"))
	}
	return errs
}

// ValidateStorageOS checks a volume's name and namespace, of which only the name
// must be given.
func ValidateStorageOS(name, namespace string, p *field.Path) (errs field.ErrorList) {
	if name == "" {
		errs = append(errs, field.Required(p.Child("volumeName"), ""))
	} else {
		errs = append(errs, dnsLabel(name, p.Child("volumeName"))...)
	}
	if namespace != "" {
		errs = append(errs, dnsLabel(namespace, p.Child("volumeNamespace"))...)
	}
	return errs
}

func validateQuobyte(v *corev1.QuobyteVolumeSource, p *field.Path) (errs field.ErrorList) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case v.Registry == "":
		errs = append(errs, field.Required(p.Child("registry"), pairs))
	case len(v.Tenant) > 64:
		errs = append(errs, field.Required(p.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	default:
		for pair := range strings.SplitSeq(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(p.Child("registry"), v.Registry, pairs))
			}
		}
	}
	return append(errs, required(v.Volume, p.Child("volume"))...)
}

func validateAzureDisk(v *corev1.AzureDiskVolumeSource, p *field.Path) field.ErrorList {
	errs := append(required(v.DiskName, p.Child("diskName")), required(v.DataDiskURI, p.Child("diskURI"))...)
	if v.CachingMode != nil {
		errs = append(errs, Among(*v.CachingMode, p.Child("cachingMode"),
			corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly,
			corev1.AzureDataDiskCachingReadWrite)...)
	}
	if v.Kind == nil {
		return errs
	}
	errs = append(errs, Among(*v.Kind, p.Child("kind"),
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)...)
	begin, like := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *v.Kind == corev1.AzureManagedDisk {
		begin = "/subscriptions/"
		like = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(v.DataDiskURI, begin) {
		errs = append(errs, field.NotSupported(p.Child("diskURI"), v.DataDiskURI, []string{like}))
	}
	return errs
}

// ValidateFlexOptions keeps Kubernetes' own namespaces from users' options.
func ValidateFlexOptions(options map[string]string, p *field.Path) (errs field.ErrorList) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		namespace, _, _ := strings.Cut(key, "/")
		namespace = "." + strings.ToLower(namespace)
		if strings.HasSuffix(namespace, ".kubernetes.io") || strings.HasSuffix(namespace, ".k8s.io") {
			errs = append(errs, field.Invalid(p.Key(key), key, "kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return errs
}
