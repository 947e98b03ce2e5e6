package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/server"
	"github.com/shoal-project/shoal/agent/serving"
	"github.com/shoal-project/shoal/agent/shutdown"
	"github.com/shoal-project/shoal/agent/stats"
)

// certificate is what the kubelet's API shows: the configured certificate, or one
// that the cluster signs and manager keeps, or else a self-signed one; none on a
// node that does not serve it.
type certificate struct {
	show    serving.Choice
	manager *serving.Manager // nil: the cluster does not sign it
}

func chooseCertificate(
	cfg *config.Config, facts host.Facts, server *api.Server, log *slog.Logger,
) (c certificate, err error) {
	if cfg.Port == 0 {
		return c, nil
	}
	if cfg.TLSCertFile != "" {
		files, err := serving.FromFiles(cfg.TLSCertFile, cfg.TLSPrivateKeyFile, log)
		if err != nil {
			return c, err
		}
		return certificate{show: files.Certificate}, nil
	}
	own, err := serving.SelfSigned(cfg.NodeName, facts.IPs)
	if err != nil {
		return c, err
	}
	if !server.Configured() || !cfg.BootstrapsTLS() {
		return certificate{show: serving.Always(own)}, nil
	}
	now, err := server.Credentials()
	if err != nil {
		return c, err
	}
	m := &serving.Manager{
		Client:     server.Client,
		NodeName:   cfg.NodeName,
		File:       filepath.Join(cfg.DataDir, "kubelet-serving.pem"),
		Cluster:    now.CA,
		Told:       now.Told,
		SelfSigned: own,
		Log:        log,
	}
	return certificate{show: m.Certificate, manager: m}, nil
}

// newServer makes the kubelet's API.
func newServer(b base, p *podParts, group *gossip.Group, show serving.Choice) (*server.Server, error) {
	cluster, err := b.server.CA()
	if err != nil {
		return nil, err
	}
	cas, err := server.ClientCAs(b.cfg.ClientCAFile, cluster)
	if err != nil {
		return nil, err
	}
	archives, err := newCheckpoints(b)
	if err != nil {
		return nil, err
	}
	s := &server.Server{
		Addr:        net.JoinHostPort(b.cfg.Address, strconv.Itoa(b.cfg.Port)),
		Certificate: show,
		Auth:        &server.Auth{Client: b.server.Client, NodeName: b.cfg.NodeName},
		Pods:        podsView{p.pods},
		Sessions:    b.runtime.sessions,
		Config:      kubeletConfig(b.cfg),
		About:       about(b.cfg),
		Checkpoint:  archives.make,
		LogsDir:     b.cfg.PodLogsDir,
		PastLogs: func(l server.Past) (logs.File, bool) {
			return p.past.Find(l.Namespace, l.Pod, l.UID, l.Container, l.Previous)
		},
		NodeLogsDir: nodeLogs(b.cfg), NodeLogQueries: b.cfg.EnableSystemLogQuery,
		Stats: newStats(b, p, show),
		Log:   b.log,
	}
	s.Auth.SetClientCAs(cas)
	if group != nil {
		s.GossipView = group.View
		if group.Keys() != nil {
			s.GossipKeys = group.Keys()
		}
	}
	if b.spans != nil {
		s.Traced = b.spans.Handler
	}
	return s, nil
}

// about tells of this program, and of its flags as they would have to be without a file.
func about(cfg *config.Config) server.About {
	out := server.About{Version: node.Version, Flags: map[string]string{}}
	set, flags := *cfg, pflag.NewFlagSet("", pflag.ContinueOnError)
	set.Flags(flags)
	flags.VisitAll(func(f *pflag.Flag) { out.Flags[f.Name] = f.Value.String() })
	return out
}

// nodeLogs is where the node keeps its logs; empty when they are not to be shown.
func nodeLogs(cfg *config.Config) string {
	if on := cfg.EnableSystemLogHandler; on != nil && !*on {
		return ""
	}
	return "/var/log"
}

// newStats measures when it is asked, and has what was counted before.
func newStats(b base, p *podParts, show serving.Choice) *stats.Provider {
	return &stats.Provider{
		NodeName:    b.cfg.NodeName,
		Runtime:     b.runtime,
		NodeDir:     b.cfg.RootDir,
		ImageDir:    b.cfg.DataDir,
		MemoryBytes: b.facts.MemoryBytes,
		Available:   host.MemoryAvailable,
		Shutdown:    lastShutdown(b),
		Claims:      b.claims.InUse,
		Standings: func() (list []stats.Standing) {
			for _, s := range p.pods.Census() {
				list = append(list, stats.Standing(s))
			}
			return list
		},

		Began: began(b.runtime),
		LogUse: func(ctx context.Context, pod statsapi.PodReference, container string) (bytes, inodes uint64) {
			dir := logs.PodDir(b.cfg.PodLogsDir, pod.Namespace, pod.Name, pod.UID)
			f := logFiles(ctx, b.cfg, filepath.Join(dir, container))
			return uint64(f.Bytes), uint64(f.Inodes)
		},
		AllPods: useOfAllPods(b.runtime),
		Network: nodeNetwork,

		Build:      stats.Build{Version: node.Version, Commit: commit()},
		CPUs:       b.facts.CPUs,
		Groups:     groupsOf(b.runtime.builtin),
		Use:        useOf(b.runtime.builtin),
		LayerDisks: layerDisks(b),
		Machine:    func() (stats.Group, error) { return stats.ReadMachine(b.facts.MemoryBytes) },
		Images:     imageNames(b.runtime),
		Counts:     b.counts,
		Probes:     p.probes.Show,
		Volumes: func(ctx context.Context) (list []stats.Volume) {
			for _, v := range p.volumes.Measure(ctx) {
				list = append(list, stats.Volume{
					Namespace: v.Namespace,
					Claim:     v.Claim,
					Path:      v.Path,
					Pod:       statsapi.PodReference{Name: v.Pod.Name, Namespace: v.Pod.Namespace, UID: string(v.Pod.UID)},
					Name:      v.Name,
					Use:       v.Use,
					Abnormal:  v.Abnormal,
					At:        v.At,

					Ephemeral:  v.Ephemeral,
					InodesUsed: v.InodesUsed,
				})
			}
			return list
		},
		VolumeNumbers: func() (list []stats.VolumeNumber) {
			for _, n := range p.volumes.Numbers() {
				list = append(list, stats.VolumeNumber(n))
			}
			return list
		},
		ClientCertificateEnd: b.server.CertificateEnd,
		ServerCertificateEnd: func() time.Time {
			c, err := show(nil)
			if err != nil || c.Leaf == nil {
				return time.Time{}
			}
			return c.Leaf.NotAfter
		},
	}
}

// began asks a runtime when its pods and containers did. What cannot be asked is left out.
func began(r containers) func(context.Context) map[string]time.Time {
	return func(ctx context.Context) map[string]time.Time {
		out := map[string]time.Time{}
		pods, err := r.ListPodSandbox(ctx, nil)
		if err == nil {
			for _, p := range pods {
				out[p.Id] = time.Unix(0, p.CreatedAt)
			}
		}
		list, err := r.ListContainers(ctx, nil)
		if err == nil {
			for _, c := range list {
				out[c.Id] = time.Unix(0, c.CreatedAt)
			}
		}
		return out
	}
}

// useOfAllPods is nil where the runtime makes the groups.
func useOfAllPods(r containers) func() (cgroup.Stats, error) {
	if r.groups == nil {
		return nil
	}
	return r.groups.Use
}

// nodeNetwork are the interfaces of the node that are no pod's.
func nodeNetwork() (list []stats.Interface, main string) {
	for _, i := range runtime.HostInterfaces() {
		if !strings.HasPrefix(i.Name, "veth") {
			list = append(list, stats.Interface{
				Name:     i.Name,
				Received: stats.Traffic(i.Received),
				Sent:     stats.Traffic(i.Sent),
			})
		}
	}
	return list, host.DefaultInterface()
}

// commit is the one that this program was built of, "" if that is not known.
func commit() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range build.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// layerDisks are those that the built-in runtime's layers are on; none with another.
func layerDisks(b base) (list []cgroup.Disk) {
	if b.runtime.builtin == nil {
		return nil
	}
	numbers, err := host.Disks([]string{b.cfg.DataDir})
	if err != nil {
		b.log.Warn("metrics lack disks that containers have not used yet", "err", err)
	}
	for _, n := range numbers {
		var d cgroup.Disk
		if _, err := fmt.Sscanf(n, "%d:%d", &d.Major, &d.Minor); err == nil {
			list = append(list, d)
		}
	}
	return list
}

// groupsOf measures the groups of the built-in runtime; nil with another.
func groupsOf(r *runtime.Runtime) func(context.Context) []stats.Group {
	if r == nil {
		return nil
	}
	return func(ctx context.Context) (out []stats.Group) {
		for _, m := range r.Measure(ctx) {
			g := stats.Group{
				Namespace: m.Namespace, Pod: m.Pod, Container: m.Container, ContainerID: m.ContainerID, Image: m.Image,
				Path: m.Cgroup, Created: m.Created, Use: m.Use, Disks: m.Disks, Processes: m.Processes, Limits: m.Limits,
				LayerBytes: m.LayerBytes, Files: m.Files, FileLimit: m.FileLimit, Known: stats.KnowsAll,
			}
			for _, i := range m.Interfaces {
				g.Interfaces = append(g.Interfaces, stats.Interface{Name: i.Name, Received: stats.Traffic(i.Received),
					Sent: stats.Traffic(i.Sent)})
			}
			out = append(out, g)
		}
		return out
	}
}

// useOf measures by the built-in runtime; nil with another.
func useOf(r *runtime.Runtime) func() []*criv1.PodSandboxStats {
	if r == nil {
		return nil
	}
	return r.ListUse
}

// imageNames asks a runtime for the names of its containers' images.
func imageNames(r containers) func(context.Context) map[string]string {
	return func(ctx context.Context) map[string]string {
		list, err := r.ListContainers(ctx, nil)
		if err != nil {
			return nil
		}
		out := map[string]string{}
		for _, c := range list {
			out[c.Id] = cmp.Or(c.GetImage().GetUserSpecifiedImage(), c.GetImage().GetImage(), c.GetImageRef())
		}
		return out
	}
}

// lastShutdown are when the last shutdown began and ended, zero if never.
func lastShutdown(b base) func() (start, end time.Time) {
	return func() (start, end time.Time) {
		t, err := shutdown.Load(shutdownFile(b.cfg))
		if err != nil {
			b.log.Debug("metrics lack the shutdown", "err", err)
		}
		return t.Start, t.End
	}
}
