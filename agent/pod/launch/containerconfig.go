package launch

import (
	"fmt"
	"hash/fnv"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/volume"
)

// Facts is all that one container is made of.
type Facts struct {
	Host      *Host
	Pod       *v1.Pod
	Container *v1.Container
	// Attempt counts the container's runs, from 0.
	Attempt uint32
	// Image is what the container is created from.
	Image *runtimeapi.Image
	// PodIPs are those of the pod's sandbox.
	PodIPs []string
	// Target is the container whose PID namespace an ephemeral one joins.
	Target string
	// Users are those that the pod has on the node instead of the node's own.
	Users Users
	Sources
}

// Sources answer what only the container's spec tells to ask for. A missing
// object is an apimachinery not-found error.
type Sources struct {
	ConfigMap func(name string) (*v1.ConfigMap, error)
	Secret    func(name string) (*v1.Secret, error)
	// Services gives all services, false while they are not known.
	Services func() ([]*v1.Service, bool)
	// Volume and SubPath tell where a volume, or a part of it, is on the host.
	Volume  func(name string) (string, error)
	SubPath func(s volume.SubPath) (string, error)
	// NodeHosts is the node's own /etc/hosts.
	NodeHosts func() ([]byte, error)
}

// File is a file of the agent's that a container mounts.
type File struct {
	// Name is what errors call it.
	Name, Path string
	Data       []byte
	// Mode is as given, whatever the umask.
	Mode fs.FileMode
}

// Container is the CRI's form of a container, and the files that must be there
// before it is created.
func Container(f *Facts) (*runtimeapi.ContainerConfig, []File, error) {
	if err := f.checkUser(); err != nil {
		return nil, nil, err
	}
	envs, err := f.environment()
	if err != nil {
		return nil, nil, err
	}
	vars := make(map[string]string, len(envs))
	for _, e := range envs {
		vars[e.Key] = string(e.Value)
	}
	lookup := func(k string) (string, bool) { v, ok := vars[k]; return v, ok }
	mounts, files, err := f.mounts(lookup)
	if err != nil {
		return nil, nil, err
	}
	c := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: f.Container.Name, Attempt: f.Attempt},
		Image:      &runtimeapi.ImageSpec{Image: f.Image.GetId(), UserSpecifiedImage: f.Container.Image},
		Command:    expandAll(f.Container.Command, lookup),
		Args:       expandAll(f.Container.Args, lookup),
		WorkingDir: f.Container.WorkingDir,
		Envs:       envs,
		Mounts:     mounts,
		LogPath:    filepath.Join(f.Container.Name, strconv.Itoa(int(f.Attempt))+".log"),
		Stdin:      f.Container.Stdin,
		StdinOnce:  f.Container.StdinOnce,
		Tty:        f.Container.TTY,
		Labels: map[string]string{labelPodName: f.Pod.Name, labelPodNamespace: f.Pod.Namespace,
			LabelPodUID: string(f.Pod.UID), LabelContainerName: f.Container.Name},
		Annotations: f.annotations(),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       Resources(f.Host, f.Pod, f.Container),
			SecurityContext: f.security(),
		},
	}
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = f.Users.namespace()
	if f.Container.Lifecycle != nil && f.Container.Lifecycle.StopSignal != nil {
		c.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value[string(*f.Container.Lifecycle.StopSignal)])
	}
	return c, files, nil
}

func (f *Facts) annotations() map[string]string {
	a := map[string]string{
		AnnotationHash:     Hash(f.Container),
		annotationRestarts: strconv.Itoa(int(f.Attempt)),
		annotationTermPath: f.Container.TerminationMessagePath,
		annotationTermPol:  string(f.Container.TerminationMessagePolicy),
	}
	if g := f.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annotationPodGrace] = strconv.FormatInt(*g, 10)
	}
	return a
}

// Hash identifies what of a container's spec cannot change while it runs:
// its name and image.
func Hash(c *v1.Container) string {
	h := fnv.New32a()
	h.Write([]byte(c.Name))
	h.Write([]byte{0})
	h.Write([]byte(c.Image))
	return fmt.Sprintf("%08x", h.Sum32())
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
func (f *Facts) checkUser() error {
	sc, ps := contexts(f.Pod, f.Container)
	if must := effective(sc.RunAsNonRoot, ps.RunAsNonRoot); must == nil || !*must {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", f.Pod.Name+"_"+f.Pod.Namespace+"("+string(f.Pod.UID)+")", f.Container.Name)
	if u := effective(sc.RunAsUser, ps.RunAsUser); u != nil {
		if *u == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		return nil
	}
	switch {
	case f.Image == nil:
		return nil
	case f.Image.Uid != nil && f.Image.Uid.Value == 0, f.Image.Uid == nil && f.Image.Username == "":
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case f.Image.Uid == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", f.Image.Username, where)
	}
	return nil
}

func (f *Facts) security() *runtimeapi.LinuxContainerSecurityContext {
	sc, ps := contexts(f.Pod, f.Container)
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(f.Pod),
		Seccomp:                  f.Host.seccomp(effective(sc.SeccompProfile, ps.SeccompProfile)),
		SelinuxOptions:           selinux(effective(sc.SELinuxOptions, ps.SELinuxOptions)),
		SupplementalGroups:       append([]int64(nil), ps.SupplementalGroups...),
		SupplementalGroupsPolicy: groupsPolicy(ps),
	}
	if f.Target != "" {
		out.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = f.Target
	}
	if ps.FSGroup != nil {
		out.SupplementalGroups = append(out.SupplementalGroups, *ps.FSGroup)
	}
	if u := effective(sc.RunAsUser, ps.RunAsUser); u != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: *u}
	} else if f.Image != nil && f.Image.Uid != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: f.Image.Uid.Value}
	} else if f.Image != nil && f.Image.Username != "" {
		out.RunAsUsername = f.Image.Username
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
// message file; the latter two are the files to make.
func (f *Facts) mounts(lookup func(string) (string, bool)) (out []*runtimeapi.Mount, files []File, err error) {
	users := f.Users.namespace()
	hosts := true
	for i := range f.Container.VolumeMounts {
		m := &f.Container.VolumeMounts[i]
		hosts = hosts && m.MountPath != "/etc/hosts"
		mount, err := f.mount(i, m, lookup)
		if err != nil {
			return nil, nil, err
		}
		mount.UidMappings, mount.GidMappings = users.GetUids(), users.GetGids()
		out = append(out, mount)
	}
	if hosts {
		file, err := f.hosts()
		if err != nil {
			return nil, nil, fmt.Errorf("hosts file: %w", err)
		}
		files = append(files, file)
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: file.Path})
	}
	if f.Container.TerminationMessagePath != "" {
		// World-writable: the container's user is not known.
		file := File{Name: "termination message file", Path: f.Host.TerminationFile(f.Pod, f.Container.Name, f.Attempt), Mode: 0o666}
		files = append(files, file)
		out = append(out, &runtimeapi.Mount{ContainerPath: f.Container.TerminationMessagePath, HostPath: file.Path})
	}
	// Outer ones first, so that none hides another.
	slices.SortStableFunc(out, func(a, b *runtimeapi.Mount) int { return depth(a) - depth(b) })
	return out, files, nil
}

func depth(m *runtimeapi.Mount) int { return strings.Count(filepath.Clean(m.ContainerPath), "/") }

func (f *Facts) mount(i int, m *v1.VolumeMount, lookup func(string) (string, bool)) (*runtimeapi.Mount, error) {
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
	for j := range f.Pod.Spec.Volumes {
		v := &f.Pod.Spec.Volumes[j]
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
		out.HostPath, err = f.Volume(m.Name)
	} else {
		out.HostPath, err = f.SubPath(volume.SubPath{Volume: m.Name, Container: f.Container.Name, Index: i, Path: sub})
	}
	return out, err
}

// hosts is the pod's /etc/hosts.
func (f *Facts) hosts() (File, error) {
	data, err := f.hostsFile()
	return File{Name: "hosts file", Path: filepath.Join(f.Host.Dir(f.Pod), "etc-hosts"), Data: data, Mode: 0o644}, err
}

// TerminationFile is where the container's last words are on the host.
func (h *Host) TerminationFile(p *v1.Pod, container string, attempt uint32) string {
	return filepath.Join(h.Dir(p), "containers", container, strconv.Itoa(int(attempt)))
}
