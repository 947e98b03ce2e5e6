package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/volume"
)

// Volumes tells where the volumes of a pod are on the host.
type Volumes interface {
	Path(p *v1.Pod, name string) (string, error)
	SubPath(p *v1.Pod, s volume.SubPath) (string, error)
}

// launch is all that one container is made of.
type launch struct {
	host    *Host
	volumes Volumes
	env     *environment
	pod     *v1.Pod
	c       *v1.Container
	image   *runtimeapi.Image
	// ref is what the image is to be created by.
	ref     string
	attempt uint32
	ips     []string
	// target is the container whose PID namespace an ephemeral one joins.
	target string
}

// config is the CRI's form of the container.
func (l *launch) config(ctx context.Context) (*runtimeapi.ContainerConfig, error) {
	if err := l.checkUser(); err != nil {
		return nil, err
	}
	envs, err := l.env.build(ctx, l.c)
	if err != nil {
		return nil, err
	}
	vars := make(map[string]string, len(envs))
	for _, e := range envs {
		vars[e.Key] = string(e.Value)
	}
	lookup := func(k string) (string, bool) { v, ok := vars[k]; return v, ok }
	users, err := l.host.userNamespace(l.pod)
	if err != nil {
		return nil, err
	}
	mounts, err := l.mounts(lookup, users)
	if err != nil {
		return nil, err
	}
	c := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: l.c.Name, Attempt: l.attempt},
		Image:      &runtimeapi.ImageSpec{Image: l.ref, UserSpecifiedImage: l.c.Image},
		Command:    expandAll(l.c.Command, lookup),
		Args:       expandAll(l.c.Args, lookup),
		WorkingDir: l.c.WorkingDir,
		Envs:       envs,
		Mounts:     mounts,
		LogPath:    filepath.Join(l.c.Name, strconv.Itoa(int(l.attempt))+".log"),
		Stdin:      l.c.Stdin,
		StdinOnce:  l.c.StdinOnce,
		Tty:        l.c.TTY,
		Labels: map[string]string{LabelPodName: l.pod.Name, LabelPodNamespace: l.pod.Namespace,
			LabelPodUID: string(l.pod.UID), LabelContainerName: l.c.Name},
		Annotations: l.annotations(),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       linuxResources(l.pod, l.c, l.host),
			SecurityContext: l.security(),
		},
	}
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = users
	if l.c.Lifecycle != nil && l.c.Lifecycle.StopSignal != nil {
		c.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value[string(*l.c.Lifecycle.StopSignal)])
	}
	if err := l.host.makeLogDir(l.pod, l.c.Name); err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	return c, nil
}

func (l *launch) annotations() map[string]string {
	a := map[string]string{
		annotationHash:     Hash(l.c),
		annotationRestarts: strconv.Itoa(int(l.attempt)),
		annotationTermPath: l.c.TerminationMessagePath,
		annotationTermPol:  string(l.c.TerminationMessagePolicy),
	}
	if g := l.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annotationPodGrace] = strconv.FormatInt(*g, 10)
	}
	return a
}

func expandAll(in []string, lookup func(string) (string, bool)) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = volume.Expand(s, lookup)
	}
	return out
}

// effective returns a setting of the container's security context, or else
// of the pod's.
func effective[T any](c, p *T) *T {
	if c != nil {
		return c
	}
	return p
}

func contexts(p *v1.Pod, c *v1.Container) (*v1.SecurityContext, *v1.PodSecurityContext) {
	sc, ps := c.SecurityContext, p.Spec.SecurityContext
	if sc == nil {
		sc = &v1.SecurityContext{}
	}
	if ps == nil {
		ps = &v1.PodSecurityContext{}
	}
	return sc, ps
}

// checkUser holds runAsNonRoot against the user that the container would have.
func (l *launch) checkUser() error {
	sc, ps := contexts(l.pod, l.c)
	if must := effective(sc.RunAsNonRoot, ps.RunAsNonRoot); must == nil || !*must {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", l.pod.Name+"_"+l.pod.Namespace+"("+string(l.pod.UID)+")", l.c.Name)
	if u := effective(sc.RunAsUser, ps.RunAsUser); u != nil {
		if *u == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		return nil
	}
	switch {
	case l.image == nil:
		return nil
	case l.image.Uid != nil && l.image.Uid.Value == 0, l.image.Uid == nil && l.image.Username == "":
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case l.image.Uid == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", l.image.Username, where)
	}
	return nil
}

func (l *launch) security() *runtimeapi.LinuxContainerSecurityContext {
	sc, ps := contexts(l.pod, l.c)
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(l.pod),
		Seccomp:                  l.host.seccomp(effective(sc.SeccompProfile, ps.SeccompProfile)),
		SelinuxOptions:           selinux(effective(sc.SELinuxOptions, ps.SELinuxOptions)),
		SupplementalGroups:       append([]int64(nil), ps.SupplementalGroups...),
		SupplementalGroupsPolicy: groupsPolicy(ps),
	}
	if l.target != "" {
		out.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = l.target
	}
	if ps.FSGroup != nil {
		out.SupplementalGroups = append(out.SupplementalGroups, *ps.FSGroup)
	}
	if u := effective(sc.RunAsUser, ps.RunAsUser); u != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: *u}
	} else if l.image != nil && l.image.Uid != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: l.image.Uid.Value}
	} else if l.image != nil && l.image.Username != "" {
		out.RunAsUsername = l.image.Username
	}
	if g := effective(sc.RunAsGroup, ps.RunAsGroup); g != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *g}
	}
	if sc.Privileged != nil {
		out.Privileged = *sc.Privileged
	}
	if sc.ReadOnlyRootFilesystem != nil {
		out.ReadonlyRootfs = *sc.ReadOnlyRootFilesystem
	}
	out.NoNewPrivs = sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation
	if sc.Capabilities != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, c := range sc.Capabilities.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(c))
		}
		for _, c := range sc.Capabilities.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(c))
		}
	}
	if a := effective(sc.AppArmorProfile, ps.AppArmorProfile); a != nil {
		out.Apparmor = apparmor(a)
	}
	if sc.ProcMount == nil || *sc.ProcMount == v1.DefaultProcMount {
		out.MaskedPaths = defaultMasked
		out.ReadonlyPaths = defaultReadonly
	}
	return out
}

// Paths of /proc and /sys that containers do not see or may not change, as
// the OCI runtimes agree on.
var (
	defaultMasked = []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
	defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// seccomp is the profile that is asked for, or else the node's default
// (KEP-2413). Privileged containers have none: the runtime sees to that.
func (h *Host) seccomp(p *v1.SeccompProfile) *runtimeapi.SecurityProfile {
	if p == nil && h.SeccompDefault {
		p = &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}
	}
	switch {
	case p == nil:
	case p.Type == v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case p.Type == v1.SeccompProfileTypeLocalhost:
		s := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			s.LocalhostRef = filepath.Join(h.RootDir, "seccomp", *p.LocalhostProfile)
		}
		return s
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func apparmor(p *v1.AppArmorProfile) *runtimeapi.SecurityProfile {
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.AppArmorProfileTypeLocalhost:
		s := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			s.LocalhostRef = *p.LocalhostProfile
		}
		return s
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

// mounts are the container's volumes, its /etc/hosts and its termination
// message file.
func (l *launch) mounts(lookup func(string) (string, bool), users *runtimeapi.UserNamespace) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	hosts := true
	for i := range l.c.VolumeMounts {
		m := &l.c.VolumeMounts[i]
		hosts = hosts && m.MountPath != "/etc/hosts"
		mount, err := l.mount(i, m, lookup)
		if err != nil {
			return nil, err
		}
		mount.UidMappings, mount.GidMappings = users.GetUids(), users.GetGids()
		out = append(out, mount)
	}
	if hosts {
		m, err := l.hosts()
		if err != nil {
			return nil, fmt.Errorf("hosts file: %w", err)
		}
		out = append(out, m)
	}
	if l.c.TerminationMessagePath != "" {
		m, err := l.termination()
		if err != nil {
			return nil, fmt.Errorf("termination message file: %w", err)
		}
		out = append(out, m)
	}
	// Outer ones first, so that none hides another.
	slices.SortStableFunc(out, func(a, b *runtimeapi.Mount) int { return depth(a) - depth(b) })
	return out, nil
}

func depth(m *runtimeapi.Mount) int { return strings.Count(filepath.Clean(m.ContainerPath), "/") }

func (l *launch) mount(i int, m *v1.VolumeMount, lookup func(string) (string, bool)) (*runtimeapi.Mount, error) {
	out := &runtimeapi.Mount{ContainerPath: m.MountPath, Readonly: m.ReadOnly}
	if !filepath.IsAbs(out.ContainerPath) {
		out.ContainerPath = "/" + out.ContainerPath
	}
	if m.MountPropagation != nil {
		switch *m.MountPropagation {
		case v1.MountPropagationBidirectional:
			out.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case v1.MountPropagationHostToContainer:
			out.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		}
	}
	out.RecursiveReadOnly = m.ReadOnly && m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled
	for j := range l.pod.Spec.Volumes {
		v := &l.pod.Spec.Volumes[j]
		if v.Name != m.Name {
			continue
		}
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly || volume.FromAPI(v) {
			out.Readonly = true
		}
		if v.Image != nil {
			out.Image = &runtimeapi.ImageSpec{Image: v.Image.Reference, UserSpecifiedImage: v.Image.Reference}
			out.ImageSubPath, out.Readonly = m.SubPath, true
			return out, nil
		}
	}
	sub := m.SubPath
	if m.SubPathExpr != "" {
		missing := ""
		sub = volume.Expand(m.SubPathExpr, func(k string) (string, bool) {
			v, ok := lookup(k)
			if !ok {
				missing = k
			}
			return v, ok
		})
		if missing != "" {
			return nil, fmt.Errorf("missing value for %q", missing)
		}
	}
	var err error
	if sub == "" {
		out.HostPath, err = l.volumes.Path(l.pod, m.Name)
	} else {
		out.HostPath, err = l.volumes.SubPath(l.pod, volume.SubPath{Volume: m.Name, Container: l.c.Name, Index: i, Path: sub})
	}
	return out, err
}

func (l *launch) hosts() (*runtimeapi.Mount, error) {
	path := filepath.Join(l.host.Dir(l.pod), "etc-hosts")
	data, err := l.host.hostsFile(l.pod, l.ips)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	// Written in place: containers that run have this very file mounted, and may
	// have written it.
	if old := readHead(path, int64(len(data))+1); old != string(data) {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return nil, err
		}
	}
	return &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path}, nil
}

// terminationFile is where the container's last words are on the host.
func (h *Host) terminationFile(p *v1.Pod, container string, attempt uint32) string {
	return filepath.Join(h.Dir(p), "containers", container, strconv.Itoa(int(attempt)))
}

func (l *launch) termination() (*runtimeapi.Mount, error) {
	path := l.host.terminationFile(l.pod, l.c.Name, l.attempt)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, err
	}
	// World-writable whatever the umask: the container's user is not known.
	err = errors.Join(f.Chmod(0o666), f.Close())
	return &runtimeapi.Mount{ContainerPath: l.c.TerminationMessagePath, HostPath: path}, err
}
