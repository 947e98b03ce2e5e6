package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/cpuset"
)

// Validate checks the values alone; it reads no file. All faults are told at
// once.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.Kind != "" && c.Kind != Kind {
		bad("kind", "%q is not %s", c.Kind, Kind)
	}
	if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		bad("nodeName", "%q: %s", c.NodeName, msgs[0])
	}
	c.validateAddresses(bad)
	c.validateNodePorts(bad)
	c.validateDirs(bad)
	errs = append(errs, c.Gateway.Check())
	for _, p := range []struct {
		field string
		port  int
	}{{"port", c.Port}, {"gossipPort", c.GossipPort}} {
		if p.port < 0 || p.port > 65535 {
			bad(p.field, "%d is not a port number", p.port)
		}
	}
	for _, a := range []struct{ field, addr string }{
		{"proxyHealthzBindAddress", c.ProxyHealthzBindAddress}, {"proxyMetricsBindAddress", c.ProxyMetricsBindAddress},
	} {
		if _, err := netip.ParseAddrPort(a.addr); a.addr != "" && err != nil {
			bad(a.field, "%q is not an IP address with a port, such as 127.0.0.1:10249", a.addr)
		}
	}
	for _, d := range []struct {
		field string
		metav1.Duration
	}{
		{"conntrack.tcpEstablishedTimeout", c.Conntrack.TCPEstablishedTimeout},
		{"conntrack.tcpCloseWaitTimeout", c.Conntrack.TCPCloseWaitTimeout},
		{"conntrack.udpTimeout", c.Conntrack.UDPTimeout},
		{"conntrack.udpStreamTimeout", c.Conntrack.UDPStreamTimeout},
	} {
		if d.Duration.Duration < 0 {
			bad(d.field, "%s must not be negative", d.Duration.Duration)
		}
	}
	if on := c.EnableSystemLogHandler; c.EnableSystemLogQuery && on != nil && !*on {
		bad("enableSystemLogQuery", "it needs enableSystemLogHandler: true")
	}
	for field, n := range map[string]int32{"maxPerCore": c.Conntrack.MaxPerCore, "min": c.Conntrack.Min} {
		if n < 0 {
			bad("conntrack."+field, "%d must not be negative", n)
		}
	}
	for _, r := range []struct{ field, cidr string }{
		{"clusterCIDR", c.ClusterCIDR}, {"serviceCIDR", c.ServiceCIDR}, {"podCIDR", c.PodCIDR},
	} {
		if r.cidr == "" {
			continue
		}
		most := 1 // of a family
		if r.field == "clusterCIDR" {
			most = maxPodRanges
		}
		validateRanges(r.cidr, most, func(format string, args ...any) { bad(r.field, format, args...) })
	}
	if c.Tracing != nil {
		c.Tracing.validate(bad)
	}
	if c.CgroupDriver != "cgroupfs" && c.CgroupDriver != "systemd" {
		bad("cgroupDriver", "%q: use cgroupfs or systemd", c.CgroupDriver)
	}
	if c.PodNetwork != BuiltinNetwork && c.PodNetwork != NoNetwork {
		bad("podNetwork", "%q: use builtin or none", c.PodNetwork)
	}
	for name, program := range c.RuntimeHandlers {
		if msgs := validation.IsDNS1123Label(name); name != "" && len(msgs) > 0 {
			bad("runtimeHandlers", "%q: %s", name, msgs[0])
		}
		if strings.TrimSpace(program) == "" {
			bad("runtimeHandlers", "%q has no program", name)
		}
	}
	if c.ImageServiceEndpoint != "" && c.ContainerRuntimeEndpoint == "" {
		bad("imageServiceEndpoint", "%q is of a runtime that containerRuntimeEndpoint names; the built-in one has its own",
			c.ImageServiceEndpoint)
	}
	if c.MaxPods < 1 {
		bad("maxPods", "%d must be positive", c.MaxPods)
	}
	if q, err := resource.ParseQuantity(c.ContainerLogMaxSize); err != nil || q.Value() <= 0 {
		bad("containerLogMaxSize", "%q is not a size", c.ContainerLogMaxSize)
	}
	if u, err := url.Parse(c.StaticPodURL); c.StaticPodURL != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("staticPodURL", "%q is not the URL of a server, as https://manifests.example.com/node1.yaml", c.StaticPodURL)
	}
	if d := c.FileCheckFrequency.Duration; d != 0 && d < time.Second {
		bad("fileCheckFrequency", "%v is less than a second; 0 is for a directory of whose changes the kernel tells", d)
	}
	if d := c.HTTPCheckFrequency.Duration; d < time.Second {
		bad("httpCheckFrequency", "%s: at least 1s", d)
	}
	if d := c.RuntimeRequestTimeout.Duration; d < time.Second {
		bad("runtimeRequestTimeout", "%s: at least 1s", d)
	}
	if q, err := resource.ParseQuantity(c.PodLogsMaxSize); c.PodLogsMaxSize != "" && (err != nil || q.Value() <= 0) {
		bad("podLogsMaxSize", "%q is not a size, as 2Gi; leave it out to have no limit", c.PodLogsMaxSize)
	}
	if d := c.DeletedPodLogMaxAge.Duration; d < 0 {
		bad("deletedPodLogMaxAge", "%s: 0s removes logs with their pod, 10m keeps them for ten minutes", d)
	}
	if c.ContainerLogMaxFiles < 2 {
		bad("containerLogMaxFiles", "%d: at least 2", c.ContainerLogMaxFiles)
	}
	if d := c.MaxContainerRestartPeriod.Duration; d < time.Second || d > 5*time.Minute {
		bad("maxContainerRestartPeriod", "%s: between 1s and 5m", d)
	}
	if d := c.EndpointRemovalWait.Duration; d < 0 {
		bad("endpointRemovalWait", "%s: 0s has pods end at once, 5s waits so long at most", d)
	}
	if n := c.PodPidsLimit; n != nil && (*n == 0 || *n < -1) {
		bad("podPidsLimit", "%d: a positive number, or -1 for no limit", *n)
	}
	if n := c.UserNamespaces.IDsPerPod; n != nil && (*n <= 0 || *n >= 1<<32 || *n%UsersPerPod != 0) {
		bad("userNamespaces.idsPerPod", "%d: a multiple of %d below 2^32", *n, UsersPerPod)
	}
	c.validateOverlay(bad)
	c.validateReserved(bad)
	c.validateManagers(bad)
	c.validateReclaim(bad)
	c.validateImages(bad)
	if _, err := c.Level(); err != nil {
		bad("logLevel", "%q: use debug, info, warn or error", c.LogLevel)
	}
	if c.LoggingFormat != "" && c.LoggingFormat != "text" && c.LoggingFormat != "json" {
		bad("loggingFormat", "%q: use text or json", c.LoggingFormat)
	}
	return errors.Join(append(errs, c.Hollow.validate(c.Kubeconfig))...)
}

// maxPodRanges is the coordinator's.
const maxPodRanges = 16

// validateRanges checks ranges with commas between, of which there are at most so many of
// each family.
func validateRanges(text string, most int, bad func(format string, args ...any)) {
	var found []netip.Prefix
	families := map[bool]int{}
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			bad("%q is not a CIDR", one)
			return
		}
		if slices.ContainsFunc(found, p.Overlaps) {
			bad("%q overlaps another range", one)
		}
		found = append(found, p)
		families[p.Addr().Is4()]++
	}
	if max(families[true], families[false]) > most {
		bad("%q: more ranges of one family than %d", text, most)
	}
}

func (c *Config) validateNodeIP(bad func(field, format string, args ...any)) {
	if c.NodeIP == "" {
		return
	}
	var found []netip.Addr
	for one := range strings.SplitSeq(c.NodeIP, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(one))
		if err != nil || a == netip.IPv6Unspecified() || a.IsMulticast() || a.Zone() != "" {
			bad("nodeIP", "%q is not the IP address of a machine", one)
			return
		}
		found = append(found, a)
	}
	switch {
	case len(found) > 2 || len(found) == 2 && found[0].Is4() == found[1].Is4():
		bad("nodeIP", "%q: at most one address of each family", c.NodeIP)
	case len(found) == 2 && slices.ContainsFunc(found, netip.Addr.IsUnspecified):
		bad("nodeIP", "%q: a pair has two addresses of the machine", c.NodeIP)
	}
}

func (c *Config) validateAddresses(bad func(field, format string, args ...any)) {
	c.validateNodeIP(bad)
	for i, text := range c.NodeExternalIPs {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil || a.Zone() != "":
			bad("nodeExternalIPs", "%q is not an IP address", text)
		case !a.IsGlobalUnicast():
			bad("nodeExternalIPs", "nobody reaches a node at %s from outside", text)
		case slices.Contains(c.NodeExternalIPs[:i], text):
			bad("nodeExternalIPs", "%s is there twice", text)
		}
	}
	for _, a := range c.ClusterDNS {
		if net.ParseIP(a) == nil {
			bad("clusterDNS", "%q is not an IP address", a)
		}
	}
	c.validateNames(bad)
}

// validateNames checks what the DNS server answers beside the cluster's names.
func (c *Config) validateNames(bad func(field, format string, args ...any)) {
	server := func(field, text string) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			var at netip.AddrPort
			at, err = netip.ParseAddrPort(text)
			a = at.Addr()
		}
		switch {
		case err != nil:
			bad(field, "%q is not an address, or an address with a port", text)
		case slices.Contains(c.ClusterDNS, a.String()):
			bad(field, "%s is this server itself (clusterDNS)", text)
		}
	}
	for _, s := range c.UpstreamNameservers {
		server("upstreamNameservers", s)
	}
	for _, domain := range slices.Sorted(maps.Keys(c.StubDomains)) {
		name := strings.ToLower(strings.TrimSuffix(domain, "."))
		if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
			bad("stubDomains", "%q: %s", domain, strings.Join(msgs, "; "))
		}
		if own := strings.ToLower(c.ClusterDomain); name == own || strings.HasSuffix(name, "."+own) {
			bad("stubDomains", "%q is the cluster's own (clusterDomain)", domain)
		}
		if len(c.StubDomains[domain]) == 0 {
			bad("stubDomains", "%q has no server", domain)
		}
		for _, s := range c.StubDomains[domain] {
			server("stubDomains", s)
		}
	}
	if !slices.Contains([]string{"", CompleteNone, CompleteLongNames, CompleteAllNames}, c.DNSSearchCompletion) {
		bad("dnsSearchCompletion", "%q is not one of %s, %s, %s",
			c.DNSSearchCompletion, CompleteNone, CompleteLongNames, CompleteAllNames)
	}
	if f := c.DNSHostsFile; f != "" && !filepath.IsAbs(f) {
		bad("dnsHostsFile", "%q must be an absolute path", f)
	}
}

// validateNodePorts refuses what kube-proxy refuses.
func (c *Config) validateNodePorts(bad func(field, format string, args ...any)) {
	for _, text := range c.NodePortAddresses {
		if text == PrimaryAddresses {
			if len(c.NodePortAddresses) > 1 {
				bad("nodePortAddresses", "%s stands alone: it is not for a list with others", text)
			}
			continue
		}
		if p, err := netip.ParsePrefix(text); err != nil || p.Addr().Is4In6() {
			bad("nodePortAddresses", "%q is neither a CIDR, such as 192.0.2.0/24, nor the word %s", text,
				PrimaryAddresses)
		}
	}
}

// ValidateDirs checks what a cleanup must be able to rely on. It leaves all else
// unsaid, for an earlier version may have taken other values.
func (c *Config) ValidateDirs() error {
	var errs []error
	c.validateDirs(func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	})
	return errors.Join(errs...)
}

func (c *Config) validateDirs(bad func(field, format string, args ...any)) {
	for _, d := range []struct{ field, dir string }{
		{"dataDir", c.DataDir}, {"rootDir", c.RootDir}, {"podLogsDir", c.PodLogsDir}, {"runDir", c.RunDir},
	} {
		if !filepath.IsAbs(d.dir) {
			bad(d.field, "%q must be an absolute path", d.dir)
		}
	}
	if d := c.VolumesDir(); d != "" && !filepath.IsAbs(d) {
		bad("localVolumesDir", "%q must be an absolute path, empty, or - for no driver", d)
	}
	if f := c.CheckpointKey(); !filepath.IsAbs(f) || strings.HasPrefix(filepath.Clean(f), c.CheckpointDir()+"/") {
		bad("checkpointKeyFile", "%q must be an absolute path outside %s", f, c.CheckpointDir())
	}
}

// validateReclaim checks when the node frees resources; thresholds are read by those
// who act on them.
func (c *Config) validateReclaim(bad func(field, format string, args ...any)) {
	if c.EvictionMaxPodGracePeriod < 0 {
		bad("evictionMaxPodGracePeriod", "%d must not be negative", c.EvictionMaxPodGracePeriod)
	}
	high, low := c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent
	if high < 0 || high > 100 {
		bad("imageGCHighThresholdPercent", "%d is not a percentage between 0 and 100", high)
	}
	if low < 0 || low >= high {
		bad("imageGCLowThresholdPercent", "%d must be between 0 and imageGCHighThresholdPercent, %d", low, high)
	}
	for _, d := range []struct {
		field string
		metav1.Duration
	}{
		{"evictionPressureTransitionPeriod", c.EvictionPressureTransitionPeriod},
		{"imageMinimumGCAge", c.ImageMinimumGCAge}, {"imageMaximumGCAge", c.ImageMaximumGCAge},
		{"minimumContainerTTLDuration", c.MinimumContainerTTLDuration},
	} {
		if d.Duration.Duration < 0 {
			bad(d.field, "%s must not be negative", d.Duration.Duration)
		}
	}
	if _, err := c.MemoryStallShare(); err != nil {
		bad("evictionMemoryStall", "%w", err)
	}
	// A shorter period would be one look of a machine at rest.
	if d := c.EvictionMemoryStallPeriod.Duration; d < 10*time.Second || d > 10*time.Minute {
		bad("evictionMemoryStallPeriod", "%s: between 10s and 10m", d)
	}
	if d := c.ImageMaximumGCAge.Duration; d > 0 && d <= c.ImageMinimumGCAge.Duration {
		bad("imageMaximumGCAge", "%s must be more than imageMinimumGCAge, %s", d, c.ImageMinimumGCAge.Duration)
	}
}

// reservable is what the kubelet lets the system keep for itself.
var reservable = []string{"cpu", "memory", "ephemeral-storage", "pid"}

func (c *Config) validateReserved(bad func(field, format string, args ...any)) {
	for _, m := range []struct {
		field  string
		values map[string]string
	}{{"systemReserved", c.SystemReserved}, {"kubeReserved", c.KubeReserved}} {
		for k, v := range m.values {
			switch q, err := resource.ParseQuantity(v); {
			case err != nil:
				bad(m.field, "%s: %q is not a quantity", k, v)
			case q.Sign() < 0:
				bad(m.field, "%s: %q must not be negative", k, v)
			case !slices.Contains(reservable, k) && !strings.HasPrefix(k, corev1.ResourceHugePagesPrefix):
				bad(m.field, "%q cannot be reserved: use %s", k, strings.Join(reservable, ", "))
			}
		}
	}
}

// validateManagers checks who gets CPUs, memory and swap; options are read by those who
// act on them.
func (c *Config) validateManagers(bad func(field, format string, args ...any)) {
	for _, f := range []struct {
		field, value string
		known        []string
	}{
		{"cpuManagerPolicy", c.CPUManagerPolicy, []string{ManagerNone, CPUManagerStatic}},
		{"memoryManagerPolicy", c.MemoryManagerPolicy, []string{MemoryManagerNone, MemoryManagerOn}},
		{"topologyManagerPolicy", c.TopologyManagerPolicy,
			[]string{ManagerNone, "best-effort", "restricted", "single-numa-node"}},
		{"topologyManagerScope", c.TopologyManagerScope, []string{"container", "pod"}},
		{"memoryReservationPolicy", c.MemoryReservationPolicy, []string{ReserveNone, ReserveTiered}},
		{"memorySwap.swapBehavior", c.MemorySwap.SwapBehavior, []string{NoSwap, LimitedSwap}},
	} {
		if !slices.Contains(f.known, f.value) {
			bad(f.field, "%q: use %s", f.value, strings.Join(f.known, ", "))
		}
	}
	reserved, err := cpuset.Parse(c.ReservedSystemCPUs)
	if err != nil {
		bad("reservedSystemCPUs", "%q is not a list of CPUs, such as 0-1,4", c.ReservedSystemCPUs)
	}
	if c.CPUManagerPolicy == CPUManagerStatic && reserved.IsEmpty() &&
		!reserves(c.SystemReserved) && !reserves(c.KubeReserved) {
		bad("cpuManagerPolicy", "static keeps CPUs for the system: name them in reservedSystemCPUs, "+
			"or give an amount of cpu in systemReserved or kubeReserved")
	}
	if f := c.MemoryThrottlingFactor; f != nil && (*f <= 0 || *f > 1) {
		bad("memoryThrottlingFactor", "%v: above 0, and 1 at most", *f)
	}
	c.validateIOLatency(bad)
	if d := c.CPUCFSQuotaPeriod.Duration; d < time.Millisecond || d > time.Second {
		bad("cpuCFSQuotaPeriod", "%s: between 1ms and 1s", d)
	}
	for _, r := range c.ReservedMemory {
		for kind, v := range r.Limits {
			if q, err := resource.ParseQuantity(v); err != nil || q.Sign() < 0 {
				bad("reservedMemory", "NUMA node %d: %s: %q is not a quantity", r.NumaNode, kind, v)
			}
			if kind != string(corev1.ResourceMemory) && !strings.HasPrefix(kind, corev1.ResourceHugePagesPrefix) {
				bad("reservedMemory", "NUMA node %d: %q cannot be reserved of it: use memory or hugepages-SIZE",
					r.NumaNode, kind)
			}
		}
	}
}

func reserves(list map[string]string) bool {
	q, err := resource.ParseQuantity(list[string(corev1.ResourceCPU)])
	return err == nil && q.Sign() > 0
}

// Level is the slog level of LogLevel.
func (c *Config) Level() (slog.Level, error) {
	var l slog.Level
	if c.LogLevel == "" {
		return l, nil
	}
	return l, l.UnmarshalText([]byte(c.LogLevel))
}

// CheckHost tells what the host lacks, with the remedy.
func (c *Config) CheckHost() error {
	if os.Geteuid() != 0 {
		return errors.New("the agent must run as root: it makes namespaces, cgroups and mounts (try sudo)")
	}
	if c.ContainerRuntimeEndpoint != "" {
		return nil
	}
	var missing []string
	if _, err := exec.LookPath("conmon"); err != nil {
		missing = append(missing, "conmon")
	}
	_, runc := exec.LookPath("runc")
	_, crun := exec.LookPath("crun")
	if runc != nil && crun != nil {
		missing = append(missing, "runc")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s not found: apt-get install -y %s", strings.Join(missing, " and "), strings.Join(missing, " "))
	}
	return nil
}

// validate refuses what the kubelet refuses.
func (t *Tracing) validate(bad func(field, format string, args ...any)) {
	if r := t.SamplingRatePerMillion; r < 0 || r > 1_000_000 {
		bad("tracing.samplingRatePerMillion", "%d is not from 0 to 1000000", r)
	}
	endpoint := t.Endpoint
	if !strings.Contains(endpoint, "//") {
		endpoint = "dns://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		bad("tracing.endpoint", "%q is no address, such as localhost:4317: %v", t.Endpoint, err)
		return
	}
	if !slices.Contains([]string{"dns", "unix", "unix-abstract"}, u.Scheme) {
		bad("tracing.endpoint", "%q: the scheme is none, dns, unix or unix-abstract, not %s", t.Endpoint, u.Scheme)
	}
}

// validateIOLatency: a class protects itself from those with longer targets alone.
func (c *Config) validateIOLatency(bad func(field, format string, args ...any)) {
	classes := []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
	for name, d := range c.IOLatencyTargets {
		if !slices.Contains(classes, name) {
			bad("ioLatencyTargets", "%q is no class of pods: use Guaranteed, Burstable or BestEffort", name)
		}
		if d.Duration < shortestIOLatency || d.Duration > longestIOLatency {
			bad("ioLatencyTargets", "%s: %s: between %s and %s", name, d.Duration, shortestIOLatency, longestIOLatency)
		}
	}
	var last time.Duration
	for _, name := range classes {
		if d, ok := c.IOLatencyTargets[name]; ok && d.Duration < last {
			bad("ioLatencyTargets", "%s: %s is shorter than that of a better class, which would be slowed for it: "+
				"give Guaranteed the shortest and BestEffort the longest", name, d.Duration)
		} else if ok {
			last = d.Duration
		}
	}
}

// Of one request: no disk is faster than the first, and none is as slow as the second.
const (
	shortestIOLatency = 50 * time.Microsecond
	longestIOLatency  = 10 * time.Second
)
