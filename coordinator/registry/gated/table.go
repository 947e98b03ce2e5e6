package gated

// gate is a feature that is off, and the fields that it hides.
type gate struct {
	// feature is the gate's name in upstream's documentation.
	feature string
	// resources are "group/resource"; core's group is empty.
	resources []string
	// fields are paths from the object, or, for kinds with a pod in them, from
	// the pod's spec. They are one: who uses any of them may use all.
	fields []string
}

// A path is JSON names. "[]" goes into each element of a list or map. "?" after
// a name says that the field itself goes when nothing else is left in it.
var (
	// inPods are about each pod spec of podSpecs.
	inPods = []gate{
		{feature: "ClusterTrustBundleProjection", fields: []string{"volumes[].projected.sources[].clusterTrustBundle"}},
		{feature: "PodCertificateRequest", fields: []string{"volumes[].projected.sources[].podCertificate"}},
		{feature: "GenericWorkload", fields: []string{"schedulingGroup"}},
		{feature: "ContainerStopSignals", fields: []string{
			"initContainers[].lifecycle?.stopSignal",
			"containers[].lifecycle?.stopSignal",
			"ephemeralContainers[].lifecycle?.stopSignal",
		}},
	}
	inObjects = []gate{
		{feature: "ImageVolumeWithDigest", resources: []string{"/pods"}, fields: []string{
			"status.initContainerStatuses[].volumeMounts[].volumeStatus",
			"status.containerStatuses[].volumeMounts[].volumeStatus",
			"status.ephemeralContainerStatuses[].volumeMounts[].volumeStatus",
		}},
		{feature: "DRANodeAllocatableResources", resources: []string{"/pods"},
			fields: []string{"status.nodeAllocatableResourceClaimStatuses"}},
		{feature: "MaxUnavailableStatefulSet", resources: []string{"apps/statefulsets"},
			fields: []string{"spec.updateStrategy.rollingUpdate.maxUnavailable"}},
		{feature: "CoordinatedLeaderElection", resources: []string{"coordination.k8s.io/leases"},
			fields: []string{"spec.strategy"}},
		{feature: "CoordinatedLeaderElection", resources: []string{"coordination.k8s.io/leases"},
			fields: []string{"spec.preferredHolder"}},
		{feature: "DRANodeAllocatableResources", resources: []string{"resource.k8s.io/resourceslices"},
			fields: []string{"spec.devices[].nodeAllocatableResourceMappings"}},
		{feature: "DRAListTypeAttributes", resources: []string{"resource.k8s.io/resourceslices"}, fields: []string{
			"spec.devices[].attributes[].bools",
			"spec.devices[].attributes[].ints",
			"spec.devices[].attributes[].strings",
			"spec.devices[].attributes[].versions",
		}},
		{feature: "VolumeLimitScaling", resources: []string{"storage.k8s.io/csidrivers"},
			fields: []string{"spec.preventPodSchedulingIfMissing"}},
	}
)

// podSpecs says where a kind has the spec of its pods.
var podSpecs = map[string]string{
	"/pods":                   "spec",
	"/podtemplates":           "template.spec",
	"/replicationcontrollers": "spec.template.spec",
	"apps/daemonsets":         "spec.template.spec",
	"apps/deployments":        "spec.template.spec",
	"apps/replicasets":        "spec.template.spec",
	"apps/statefulsets":       "spec.template.spec",
	"batch/cronjobs":          "spec.jobTemplate.spec.template.spec",
	"batch/jobs":              "spec.template.spec",
}
