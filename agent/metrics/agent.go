package metrics

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Agent are the families that the agent's parts count in while they work. Names,
// texts and buckets are the kubelet's and kube-proxy's, for the rules and
// dashboards that are written for those. Parts of a nil one count nothing.
type Agent struct {
	PodWorker         *Durations // by operation: create, sync, kill
	PodStart          *Durations
	ContainerEnds     *Counts // by container_type, exit_code and reason
	RuntimeOperations *Counts // by operation
	RuntimeErrors     *Counts
	RuntimeDurations  *Durations
	Cgroups           *Durations // by operation: create, update, destroy
	Storage           *Durations // by plugin, operation, status and migrated
	CSI               *Durations // by driver, method, code and migrated
	DevicePlugins     *Counts    // registrations, by resource
	DeviceAllocations *Durations // by resource
	// Claims are what pods' claims take to prepare and to give back, by operation and whether it
	// failed; ClaimCalls are the calls of drivers, by driver, method and code.
	Claims, ClaimCalls *Durations
	Evictions          *Counts // by signal
	Preemptions        *Counts // by resource
	Announcements      *Counts // of load balancers' addresses, by event
	ImageBytes         *Counts // of layers and manifests, by where they came from
	ImageBytesSent     *Counts // to other nodes
	// Pods with a user namespace that were begun, and that were not made.
	UserNamespaces, UserNamespaceErrors *Counts
	PodResources                        *Counts // requests, by version of the API
	// PodResourceCalls are the same by the method that is called.
	PodResourceCalls map[string]Calls
	// What containers ask for of CPUs and memory for themselves, and what they do not get.
	CPUPins, CPUPinErrors       *Counts
	MemoryPins, MemoryPinErrors *Counts
	// Pods that are looked at for what is to be near to each other, and those that are rejected.
	Alignments, AlignmentErrors *Counts
	Requests                    *Counts // by code, method and host
	RequestDurations            *Durations
	// Errors of the renewal of certificates, that of the client and that of the server.
	ClientCertificateErrors *Counts
	ServerCertificateErrors *Counts
	ProxySync               *Durations
	NetworkProgramming      *Durations
	// ProxyHealthz and ProxyLivez count the answers of these pages by their status.
	ProxyHealthz, ProxyLivez *Counts
	DNS                      interface{ Show(*Page) } // nil where no names are answered
	// LosesSupport is upstream's release whose kubelet would not take the container runtime any
	// more; empty where the next ones do. It is known before the page is asked for.
	LosesSupport string
}

// Calls counts calls of a method, and those that failed, by version of the API.
type Calls struct{ Requests, Errors *Counts }

// podResourceCalls are the methods of the kubelet's API of pods' resources.
func podResourceCalls() map[string]Calls {
	const version = "server_api_version"
	out := map[string]Calls{}
	for method, name := range map[string]string{
		"List": "list", "GetAllocatableResources": "get_allocatable", "Get": "get",
	} {
		to := "[ALPHA] Number of requests to the PodResource " + method + " endpoint"
		out[method] = Calls{
			NewCounts("kubelet_pod_resources_endpoint_requests_"+name,
				to+". Broken down by server api version.", version),
			NewCounts("kubelet_pod_resources_endpoint_errors_"+name,
				to+" which returned error. Broken down by server api version.", version),
		}
	}
	return out
}

// startBuckets are those of a pod's start, in seconds.
var startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900,
	1200, 1800, 2700, 3600}

// requestBuckets are client-go's, in seconds.
var requestBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0}

// storageBuckets are those of what is done to volumes, in seconds.
var storageBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// NewAgent makes all families.
func NewAgent() *Agent {
	const operation = "operation_type"
	return &Agent{
		PodWorker: NewDurations("kubelet_pod_worker_duration_seconds",
			"[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
			DefaultBuckets, operation).Preset("create", "sync", "kill"),
		PodStart: NewDurations("kubelet_pod_start_duration_seconds",
			"[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			startBuckets),
		ContainerEnds: NewCounts("kubelet_terminated_containers_total",
			"[ALPHA] Cumulative number of container terminations.", "container_type", "exit_code", "reason"),
		RuntimeOperations: NewCounts("kubelet_runtime_operations_total",
			"[ALPHA] Cumulative number of runtime operations by operation type.", operation).Preset("run_podsandbox"),
		RuntimeErrors: NewCounts("kubelet_runtime_operations_errors_total",
			"[ALPHA] Cumulative number of runtime operation errors by operation type.", operation).Preset("run_podsandbox"),
		RuntimeDurations: NewDurations("kubelet_runtime_operations_duration_seconds",
			"[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
			Exponential(.005, 2.5, 14), operation).Preset("run_podsandbox"),
		Cgroups: NewDurations("kubelet_cgroup_manager_duration_seconds",
			"[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
			DefaultBuckets, operation).Preset("create", "update", "destroy"),
		Storage: NewDurations("storage_operation_duration_seconds", "[ALPHA] Storage operation duration",
			storageBuckets, "volume_plugin", "operation_name", "status", "migrated"),
		CSI: NewDurations("csi_operations_seconds",
			"[ALPHA] Container Storage Interface operation duration with gRPC error code status total",
			storageBuckets, "driver_name", "method_name", "grpc_status_code", "migrated"),
		DevicePlugins: NewCounts("kubelet_device_plugin_registration_total",
			"[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name"),
		DeviceAllocations: NewDurations("kubelet_device_plugin_alloc_duration_seconds",
			"[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
			DefaultBuckets, "resource_name"),
		Claims: NewDurations("dra_operations_duration_seconds",
			"[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod "+
				"when the pod starts or stops. Identified by the name of the operation (PrepareResources or "+
				"UnprepareResources) and separated by the success of the operation. The number of failed operations is "+
				"provided through the histogram's overall count.", claimBuckets, "operation_name", "is_error"),
		ClaimCalls: NewDurations("dra_grpc_operations_duration_seconds",
			"[ALPHA] Duration in seconds of the DRA gRPC operations", claimBuckets, "driver_name", "method_name",
			"grpc_status_code"),
		Evictions: NewCounts("kubelet_evictions", "[ALPHA] Cumulative number of pod evictions by eviction signal",
			"eviction_signal").Preset("memory.available", "nodefs.available", "imagefs.available"),
		Preemptions: NewCounts("kubelet_preemptions",
			"[ALPHA] Cumulative number of pod preemptions by preemption resource", "preemption_signal"),
		Announcements: NewCounts("shoal_load_balancer_announcements_total",
			"What happened to addresses of load balancers on this node: it took one, handed one over, was contradicted "+
				"as there were two owners, stopped as it was cut off.", "event").
			Preset("took", "handed_over", "contradicted", "cut_off"),
		ImageBytes: NewCounts("shoal_image_received_bytes_total",
			"Bytes of images that were pulled, by where they came from: the registry, or another node.",
			"source").Preset("registry", "node"),
		ImageBytesSent: NewCounts("shoal_image_sent_bytes_total", "Bytes of images that other nodes got from this one."),
		UserNamespaces: NewCounts("kubelet_started_user_namespaced_pods_total",
			"[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux."),
		UserNamespaceErrors: NewCounts("kubelet_started_user_namespaced_pods_errors_total",
			"[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be "+
				"collected on Linux."),
		PodResources: NewCounts("kubelet_pod_resources_endpoint_requests_total",
			"[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
			"server_api_version"),
		PodResourceCalls: podResourceCalls(),
		CPUPins: NewCounts("kubelet_cpu_manager_pinning_requests_total",
			"[ALPHA] The number of cpu core allocations which required pinning."),
		CPUPinErrors: NewCounts("kubelet_cpu_manager_pinning_errors_total",
			"[ALPHA] The number of cpu core allocations which required pinning failed."),
		MemoryPins: NewCounts("kubelet_memory_manager_pinning_requests_total",
			"[ALPHA] The number of memory pages allocations which required pinning."),
		MemoryPinErrors: NewCounts("kubelet_memory_manager_pinning_errors_total",
			"[ALPHA] The number of memory pages allocations which required pinning that failed."),
		Alignments: NewCounts("kubelet_topology_manager_admission_requests_total",
			"[ALPHA] The number of admission requests where resources have to be aligned."),
		AlignmentErrors: NewCounts("kubelet_topology_manager_admission_errors_total",
			"[ALPHA] The number of admission request failures where resources could not be aligned."),
		Requests: NewCounts("rest_client_requests_total",
			"[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.", "code", "method", "host"),
		RequestDurations: NewDurations("rest_client_request_duration_seconds",
			"[ALPHA] Request latency in seconds. Broken down by verb, and host.", requestBuckets, "verb", "host"),
		ClientCertificateErrors: NewCounts("kubelet_certificate_manager_client_expiration_renew_errors",
			"[ALPHA] Counter of certificate renewal errors."),
		ServerCertificateErrors: NewCounts("kubelet_server_expiration_renew_errors",
			"[ALPHA] Counter of certificate renewal errors."),
		ProxySync: NewDurations("kubeproxy_sync_proxy_rules_duration_seconds", "[ALPHA] SyncProxyRules latency in seconds",
			Exponential(0.001, 2, 15), "ip_family").Preset("IPv4"),
		NetworkProgramming: NewDurations("kubeproxy_network_programming_duration_seconds",
			"[ALPHA] In Cluster Network Programming Latency in seconds", programmingBuckets(), "ip_family").Preset("IPv4"),
		ProxyHealthz: NewCounts("kubeproxy_proxy_healthz_total", "[ALPHA] Cumulative proxy healthz HTTP status", "code"),
		ProxyLivez:   NewCounts("kubeproxy_proxy_livez_total", "[ALPHA] Cumulative proxy livez HTTP status", "code"),
	}
}

// claimBuckets go up to 40 s, for a driver has 45 s for a call.
var claimBuckets = Exponential(0.1, math.Pow(400, 1.0/14), 15)

// programmingBuckets get wider as the time grows from a quarter of a second to
// five minutes.
func programmingBuckets() []float64 {
	out := []float64{0.25, 0.5}
	for _, part := range []struct {
		first, step float64
		n           int
	}{{1, 1, 59}, {60, 5, 12}, {120, 30, 7}} {
		for i := range part.n {
			out = append(out, part.first+part.step*float64(i))
		}
	}
	return out
}

// Show puts the families of the kubelet's and the proxy's page on it.
func (a *Agent) Show(p *Page) {
	if a == nil {
		return
	}
	for _, c := range []*Counts{a.ContainerEnds, a.RuntimeOperations, a.RuntimeErrors, a.DevicePlugins, a.PodResources,
		a.Evictions, a.Preemptions, a.Announcements, a.ImageBytes, a.ImageBytesSent, a.UserNamespaces,
		a.UserNamespaceErrors,
		a.CPUPins, a.CPUPinErrors, a.MemoryPins, a.MemoryPinErrors,
		a.Alignments, a.AlignmentErrors, a.Requests, a.ClientCertificateErrors, a.ServerCertificateErrors} {
		c.Show(p)
	}
	for _, method := range slices.Sorted(maps.Keys(a.PodResourceCalls)) {
		a.PodResourceCalls[method].Requests.Show(p)
		a.PodResourceCalls[method].Errors.Show(p)
	}
	for _, d := range []*Durations{a.PodWorker, a.PodStart, a.RuntimeDurations, a.Cgroups, a.Storage, a.CSI,
		a.DeviceAllocations, a.Claims, a.ClaimCalls, a.RequestDurations, a.ProxySync, a.NetworkProgramming} {
		d.Show(p)
	}
	if a.DNS != nil {
		a.DNS.Show(p)
	}
	if a.LosesSupport != "" {
		p.Family("kubelet_cri_losing_support", Gauge, "[ALPHA] the Kubernetes version that the currently running CRI "+
			"implementation will lose support on if not upgraded.").Put(1, "version", a.LosesSupport)
	}
}

// ShowProxy puts the families of the proxy's own page on it.
func (a *Agent) ShowProxy(p *Page) {
	if a == nil {
		return
	}
	for _, c := range []*Counts{a.Requests, a.ProxyHealthz, a.ProxyLivez} {
		c.Show(p)
	}
	for _, d := range []*Durations{a.RequestDurations, a.ProxySync, a.NetworkProgramming} {
		d.Show(p)
	}
}

// Operation counts an operation of the container runtime that begins now; the
// function that it returns is called at the end.
func (a *Agent) Operation(name string) (end func(*error)) {
	if a == nil {
		return func(*error) {}
	}
	begin := time.Now()
	a.RuntimeOperations.Inc(name)
	return func(err *error) {
		if *err != nil {
			a.RuntimeErrors.Inc(name)
		}
		a.RuntimeDurations.Since(begin, name)
	}
}
