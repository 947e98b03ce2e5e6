package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/selinux"
)

// Input is all that one container's specification depends on.
type Input struct {
	ID          string
	SandboxID   string
	Config      *criv1.ContainerConfig
	Sandbox     *criv1.PodSandboxConfig
	Image       ocispec.ImageConfig
	User        specs.User // resolved against the image's passwd and group files
	Rootfs      string
	CgroupsPath string
	Hostname    string
	Namespaces  Namespaces
	Files       Files
	Mounts      []Mount // Config.Mounts with image volumes resolved to host paths
	Devices     []specs.LinuxDevice
	IDs         IDs // of Namespaces.User
	Labels      selinux.Labels
	Host        Host
	// OwnKernel says that the runtime may make of each container a sandbox of its own, with
	// a kernel and a host name that are not the node's, as gVisor and virtual machines do.
	// runc and crun never do.
	OwnKernel bool
}

// IDs are a user namespace's mappings; nil in the node's.
type IDs struct{ UIDs, GIDs []specs.LinuxIDMapping }

// Namespaces are paths of namespaces to join; empty means the host's, except
// for PID, where empty means a new one unless HostPID is set.
type Namespaces struct {
	Net, UTS, IPC, PID string
	HostPID            bool
	User               string // the user namespace that owns the others
}

// Files are the sandbox's files that every container sees; empty = none.
type Files struct{ ResolvConf, Hostname, Hosts, Shm string }

// Mount is one bind mount from the host.
type Mount struct {
	Host, Container   string
	ReadOnly          bool
	RecursiveReadOnly bool
	Propagation       criv1.MountPropagation
}

// ErrNoCommand is returned for a container without any command.
var ErrNoCommand = errors.New("no command specified")

// Spec makes the runtime specification.
func Spec(in Input) (*specs.Spec, error) {
	sc := in.security()
	process, err := in.process()
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version: "1.0.2", // the highest that runc 1.1 knows
		Root:    &specs.Root{Path: in.Rootfs, Readonly: sc.GetReadonlyRootfs()},
		Process: process,
		Linux: &specs.Linux{
			CgroupsPath:   in.CgroupsPath,
			Namespaces:    in.namespaces(),
			Resources:     Resources(in.Config.GetLinux().GetResources(), in.Host),
			MaskedPaths:   sc.GetMaskedPaths(),
			ReadonlyPaths: sc.GetReadonlyPaths(),
			UIDMappings:   in.IDs.UIDs,
			GIDMappings:   in.IDs.GIDs,
			MountLabel:    in.Labels.File,
		},
		Annotations: in.annotations(),
	}
	if in.OwnKernel && in.Namespaces.UTS != "" { // it does not read the namespace's
		s.Hostname = in.Hostname
	}
	if sc.GetPrivileged() {
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	}
	if err := in.setDevices(s); err != nil {
		return nil, err
	}
	if err := in.setMounts(s); err != nil {
		return nil, err
	}
	if err := in.setProfiles(s); err != nil {
		return nil, err
	}
	if err := in.addDevices(s); err != nil {
		return nil, err
	}
	return s, nil
}

func (in Input) security() *criv1.LinuxContainerSecurityContext {
	return in.Config.GetLinux().GetSecurityContext()
}

// annotations are the container's, which a device plugin may have given it, and those that
// tell what it is. One of them makes runtimes such as gVisor look for the sandbox that they
// made of the pod before: nobody asked them for any, and they get none of these. The pod's
// own, which its user writes, are not passed on: runtimes act on some.
func (in Input) annotations() map[string]string {
	a := maps.Clone(in.Config.GetAnnotations())
	if a == nil {
		a = map[string]string{}
	}
	maps.Copy(a, map[string]string{
		"io.kubernetes.cri.sandbox-id":        in.SandboxID,
		"io.kubernetes.cri.sandbox-name":      in.Sandbox.GetMetadata().GetName(),
		"io.kubernetes.cri.sandbox-namespace": in.Sandbox.GetMetadata().GetNamespace(),
		"io.kubernetes.cri.sandbox-uid":       in.Sandbox.GetMetadata().GetUid(),
		"io.kubernetes.cri.container-name":    in.Config.GetMetadata().GetName(),
		"io.kubernetes.cri.image-name":        in.Config.GetImage().GetUserSpecifiedImage(),
	})
	if !in.OwnKernel {
		a["io.kubernetes.cri.container-type"] = "container"
	}
	if strings.Contains(in.CgroupsPath, ":") { // by systemd
		a["run.oci.systemd.subgroup"] = "" // or crun's limits lie one level below the scope
	}
	return a
}

func (in Input) namespaces() []specs.LinuxNamespace {
	ns := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	add := func(kind specs.LinuxNamespaceType, path string) {
		if path != "" {
			ns = append(ns, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	add(specs.UserNamespace, in.Namespaces.User)
	add(specs.NetworkNamespace, in.Namespaces.Net)
	add(specs.UTSNamespace, in.Namespaces.UTS)
	add(specs.IPCNamespace, in.Namespaces.IPC)
	if !in.Namespaces.HostPID {
		ns = append(ns, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: in.Namespaces.PID})
	}
	if in.Host.CgroupV2 && !in.security().GetPrivileged() {
		ns = append(ns, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return ns
}

// setProfiles sets the labels of SELinux, seccomp and AppArmor. A privileged container has
// of these what it asks for in labels alone.
func (in Input) setProfiles(s *specs.Spec) error {
	sc := in.security()
	s.Process.SelinuxLabel = in.Labels.Process
	if sc.GetPrivileged() {
		return nil
	}
	var err error
	if s.Process.ApparmorProfile, err = in.apparmorProfile(); err != nil {
		return err
	}
	p := sc.GetSeccomp()
	switch {
	case p == nil || p.GetProfileType() == criv1.SecurityProfile_Unconfined:
		return nil
	case p.GetProfileType() == criv1.SecurityProfile_RuntimeDefault:
		s.Linux.Seccomp = defaultSeccomp(s)
		return nil
	}
	profile, err := localSeccomp(p.GetLocalhostRef())
	s.Linux.Seccomp = profile
	return err
}

func localSeccomp(path string) (*specs.LinuxSeccomp, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("seccomp profile %q must be an absolute path", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot load seccomp profile %q: %w", path, err)
	}
	profile := &specs.LinuxSeccomp{}
	if err := json.Unmarshal(b, profile); err != nil {
		return nil, fmt.Errorf("decoding seccomp profile failed %q: %w", path, err)
	}
	return profile, nil
}
