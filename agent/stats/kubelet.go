package stats

import (
	"cmp"
	"context"
	"io"
	"maps"
	"runtime"
	"slices"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Volume is one volume that a pod of the node mounts.
type Volume struct {
	// Namespace and Claim name the claim, "" for none; Path is where the volume is
	// mounted.
	Namespace, Claim, Path string
	// Pod and Name say whose it is, and what the pod calls it.
	Pod  statsapi.PodReference
	Name string
	// Use is what it holds, nil if nobody tells; Abnormal whether something is wrong
	// with it, nil the same.
	Use      *host.FileSystem
	Abnormal *bool
	At       time.Time
	// Ephemeral: it lies on the node's disk and ends with its pod. InodesUsed is how many
	// files there are of one that shares its file system, 0: all of the file system's.
	Ephemeral  bool
	InodesUsed uint64
}

func (v Volume) inodesUsed() uint64 {
	if v.InodesUsed > 0 {
		return v.InodesUsed
	}
	return v.Use.Inodes - v.Use.InodesFree
}

// Build says which version this is.
type Build struct {
	Version, Commit string
}

// Metrics tells of the agent itself, as the kubelet does, and of its proxy.
func (p *Provider) Metrics(ctx context.Context, out io.Writer) error {
	page := metrics.NewPage(out)
	p.Build.of(page)
	page.Family("kubelet_node_name", metrics.Gauge, "[STABLE] The node's name. The count is always 1.").
		Put(1, "node", p.NodeName)
	err := p.running(ctx, page)
	p.standings(page)
	p.shutdown(page)
	p.claims(page)
	p.certificates(page)
	p.volumes(ctx, page)
	p.Counts.Show(page)
	process(page)
	return cmp.Or(page.Flush(), err)
}

// Proxy tells of the agent's proxy alone, as kube-proxy does.
func Proxy(out io.Writer, b Build, counts *metrics.Agent) error {
	page := metrics.NewPage(out)
	b.of(page)
	counts.ShowProxy(page)
	process(page)
	return page.Flush()
}

// running counts what runs; nothing is told of it when that cannot be asked. It measures
// none: that takes a millisecond a pod.
func (p *Provider) running(ctx context.Context, page *metrics.Page) error {
	pods, err := p.Runtime.ListPodSandbox(ctx, &criv1.PodSandboxFilter{
		State: &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY}})
	if err != nil {
		return err
	}
	containers, err := p.Runtime.ListContainers(ctx, &criv1.ContainerFilter{
		State: &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		return err
	}
	page.Family("kubelet_running_pods", metrics.Gauge, "[ALPHA] Number of pods that have a running pod sandbox").
		Put(float64(len(pods)))
	page.Family("kubelet_running_containers", metrics.Gauge, "[ALPHA] Number of containers currently running").
		Put(float64(len(containers)), "container_state", "running")
	return nil
}

// Standing is how a pod stands with the agent, in the words of the kubelet's metrics.
type Standing struct {
	Static            bool
	Config, Lifecycle string
	Active            bool
}

// standings counts pods by how they stand. All combinations are told, also of none.
func (p *Provider) standings(page *metrics.Page) {
	if p.Standings == nil {
		return
	}
	type key struct{ config, lifecycle, static string }
	working, desired, active, mirrors := map[key]int{}, map[string]int{}, map[string]int{}, 0
	for _, s := range p.Standings() {
		static := ""
		switch {
		case s.Config == "runtime_only":
			static = "unknown"
		case s.Static:
			static = "true"
		}
		working[key{s.Config, s.Lifecycle, static}]++
		if s.Config == "desired" {
			desired[static]++
		}
		if s.Active {
			active[static]++
		}
		if s.Static && s.Lifecycle != "terminated" {
			mirrors++
		}
	}
	f := page.Family("kubelet_desired_pods", metrics.Gauge, "[ALPHA] The number of pods the kubelet is being instructed "+
		"to run. static is true if the pod is not from the apiserver.")
	for _, static := range []string{"", "true"} {
		f.Put(float64(desired[static]), "static", static)
	}
	f = page.Family("kubelet_active_pods", metrics.Gauge, "[ALPHA] The number of pods the kubelet considers active and "+
		"which are being considered when admitting new pods. static is true if the pod is not from the apiserver.")
	for _, static := range []string{"", "true"} {
		f.Put(float64(active[static]), "static", static)
	}
	page.Family("kubelet_mirror_pods", metrics.Gauge, "[ALPHA] The number of mirror pods the kubelet will try to create "+
		"(one per admitted static pod)").Put(float64(mirrors))
	f = page.Family("kubelet_working_pods", metrics.Gauge, "[ALPHA] Number of pods the kubelet is actually running, "+
		"broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and "+
		"whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the "+
		"API and consumes resources that are not otherwise visible.")
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		for _, k := range []key{{"desired", lifecycle, ""}, {"desired", lifecycle, "true"}, {"orphan", lifecycle, ""},
			{"orphan", lifecycle, "true"}, {"runtime_only", lifecycle, "unknown"}} {
			f.Put(float64(working[k]), "config", k.config, "lifecycle", k.lifecycle, "static", k.static)
		}
	}
}

func (p *Provider) shutdown(page *metrics.Page) {
	start, end := p.Shutdown()
	if start.IsZero() {
		return
	}
	page.Family("kubelet_graceful_shutdown_start_time_seconds", metrics.Gauge,
		"[ALPHA] Last graceful shutdown start time since unix epoch in seconds").Put(seconds(start))
	page.Family("kubelet_graceful_shutdown_end_time_seconds", metrics.Gauge,
		"[ALPHA] Last graceful shutdown end time since unix epoch in seconds").Put(seconds(end))
}

// claims tells how many are prepared, where there are any drivers.
func (p *Provider) claims(page *metrics.Page) {
	if p.Claims == nil {
		return
	}
	f := page.Family("dra_resource_claims_in_use", metrics.Gauge, "[ALPHA] The number of ResourceClaims that are "+
		"currently in use on the node, by driver name (driver_name label value) and across all drivers (special value "+
		"<any> for driver_name). Note that the sum of all by-driver counts is not the total number of in-use "+
		"ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use the count "+
		"for the <any> driver_name.")
	inUse := p.Claims()
	for _, driver := range slices.Sorted(maps.Keys(inUse)) {
		f.Put(float64(inUse[driver]), "driver_name", driver)
	}
}

// certificates tells how long they are valid, where there are any.
func (p *Provider) certificates(page *metrics.Page) {
	for _, c := range []struct {
		name, help string
		end        func() time.Time
	}{
		{"kubelet_certificate_manager_client_ttl_seconds", "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's " +
			"client certificate. The value is in seconds until certificate expiry (negative if already expired).",
			p.ClientCertificateEnd},
		{"kubelet_certificate_manager_server_ttl_seconds", "[ALPHA] Gauge of the shortest TTL (time-to-live) of the " +
			"Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired).",
			p.ServerCertificateEnd},
	} {
		if c.end == nil {
			continue
		}
		if end := c.end(); !end.IsZero() {
			page.Family(c.name, metrics.Gauge, c.help).Put(time.Until(end).Round(time.Second).Seconds())
		}
	}
}

// volumes measures the file systems of claims, each once.
func (p *Provider) volumes(ctx context.Context, page *metrics.Page) {
	if p.Volumes == nil {
		return
	}
	mounted := slices.DeleteFunc(p.Volumes(ctx), func(v Volume) bool { return v.Claim == "" })
	slices.SortFunc(mounted, func(a, b Volume) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim))
	})
	mounted = slices.CompactFunc(mounted, func(a, b Volume) bool {
		return a.Namespace == b.Namespace && a.Claim == b.Claim
	})
	for _, f := range []struct {
		name, help string
		of         func(host.FileSystem) uint64
	}{
		{"kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume",
			func(fs host.FileSystem) uint64 { return fs.Available }},
		{"kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume",
			func(fs host.FileSystem) uint64 { return fs.Bytes }},
		{"kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume",
			func(fs host.FileSystem) uint64 { return fs.Inodes }},
		{"kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume",
			func(fs host.FileSystem) uint64 { return fs.InodesFree }},
		{"kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume",
			func(fs host.FileSystem) uint64 { return fs.Inodes - fs.InodesFree }},
		{"kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume",
			func(fs host.FileSystem) uint64 { return fs.Used }},
	} {
		family := page.Family(f.name, metrics.Gauge, f.help)
		for _, v := range mounted {
			if v.Use != nil {
				family.Put(float64(f.of(*v.Use)), "namespace", v.Namespace, "persistentvolumeclaim", v.Claim)
			}
		}
	}
	family := page.Family("kubelet_volume_stats_health_status_abnormal", metrics.Gauge,
		"[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, "+
			"0 indicates volume is healthy")
	for _, v := range mounted {
		if v.Abnormal == nil {
			continue
		}
		is := 0.0
		if *v.Abnormal {
			is = 1
		}
		family.Put(is, "namespace", v.Namespace, "persistentvolumeclaim", v.Claim)
	}
	p.volumeNumbers(page)
}

// volumeNumbers counts the volumes that are made, by what makes them. Those that
// are wanted are made before a pod's containers, or the pod waits.
func (p *Provider) volumeNumbers(page *metrics.Page) {
	if p.VolumeNumbers == nil {
		return
	}
	f := page.Family("volume_manager_total_volumes", metrics.Gauge, "[ALPHA] Number of volumes in Volume Manager")
	for _, n := range p.VolumeNumbers() {
		f.Put(float64(n.Wanted), "plugin_name", n.Plugin, "state", "desired_state_of_world")
		f.Put(float64(n.Made), "plugin_name", n.Plugin, "state", "actual_state_of_world")
	}
}

// VolumeNumber counts the volumes of one kind.
type VolumeNumber struct {
	Plugin       string
	Wanted, Made int
}

// Health is /metrics/slis: whether the agent is well at this moment; err says why not.
func Health(out io.Writer, err error) error {
	page := metrics.NewPage(out)
	well := 1.0
	if err != nil {
		well = 0
	}
	page.Family("kubernetes_healthcheck", metrics.Gauge,
		"[STABLE] This metric records the result of a single healthcheck.").Put(well, "name", "ping", "type", "healthz")
	return page.Flush()
}

// ProbeResults is /metrics/probes.
func (p *Provider) ProbeResults(_ context.Context, out io.Writer) error {
	page := metrics.NewPage(out)
	if p.Probes != nil {
		p.Probes(page)
	}
	return page.Flush()
}

// of says which Kubernetes this is.
func (b Build) of(page *metrics.Page) {
	major, minor := "1", "36"
	page.Family("kubernetes_build_info", metrics.Gauge, "[BETA] A metric with a constant '1' value labeled by major, "+
		"minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was "+
		"built, and platform on which it is running.").
		Put(1, "build_date", "1970-01-01T00:00:00Z", "compiler", runtime.Compiler, "git_commit", b.Commit,
			"git_tree_state", "clean", "git_version", b.Version, "go_version", runtime.Version(), "major", major,
			"minor", minor, "platform", runtime.GOOS+"/"+runtime.GOARCH)
}

// process tells of the agent's process.
func process(page *metrics.Page) {
	if own, err := host.Self(); err == nil {
		page.Family("process_cpu_seconds_total", metrics.Counter, "Total user and system CPU time spent in seconds.").
			Put(own.CPU.Seconds())
		page.Family("process_max_fds", metrics.Gauge, "Maximum number of open file descriptors.").
			Put(float64(own.MaxFiles))
		page.Family("process_open_fds", metrics.Gauge, "Number of open file descriptors.").Put(float64(own.Files))
		page.Family("process_resident_memory_bytes", metrics.Gauge, "Resident memory size in bytes.").
			Put(float64(own.Resident))
		page.Family("process_start_time_seconds", metrics.Gauge,
			"Start time of the process since unix epoch in seconds.").Put(seconds(own.Started))
		page.Family("process_virtual_memory_bytes", metrics.Gauge, "Virtual memory size in bytes.").
			Put(float64(own.Virtual))
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	page.Family("go_goroutines", metrics.Gauge, "Number of goroutines that currently exist.").
		Put(float64(runtime.NumGoroutine()))
	page.Family("go_info", metrics.Gauge, "Information about the Go environment.").
		Put(1, "version", runtime.Version())
	for _, f := range []struct {
		name, kind, help string
		value            float64
	}{
		{"go_gc_cycles_total", metrics.Counter, "Number of completed garbage collections.", float64(mem.NumGC)},
		{"go_memstats_alloc_bytes", metrics.Gauge, "Number of bytes allocated in heap and currently in use.",
			float64(mem.Alloc)},
		{"go_memstats_heap_inuse_bytes", metrics.Gauge, "Number of heap bytes that are in use.", float64(mem.HeapInuse)},
		{"go_memstats_sys_bytes", metrics.Gauge, "Number of bytes obtained from system.", float64(mem.Sys)},
	} {
		page.Family(f.name, f.kind, f.help).Put(f.value)
	}
}

// seconds since the epoch, 0 for no time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}
