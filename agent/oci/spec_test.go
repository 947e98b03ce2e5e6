package oci

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/selinux"
)

// input is a minimal container on a host without CAP_SYS_RESOURCE.
func input(change func(*Input)) Input {
	in := Input{
		ID: "c1", SandboxID: "s1",
		Sandbox: &criv1.PodSandboxConfig{Metadata: &criv1.PodSandboxMetadata{Name: "pod", Namespace: "ns", Uid: "u"}},
		Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "main"}, Image: &criv1.ImageSpec{},
			Linux: &criv1.LinuxContainerConfig{SecurityContext: &criv1.LinuxContainerSecurityContext{},
				Resources: &criv1.LinuxContainerResources{}},
		},
		Image: ocispec.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"arg"},
			Env: []string{"A=image", "PATH=/bin"}, WorkingDir: "/work"},
		CgroupsPath: "/kubepods/podu/c1", Hostname: "pod", Rootfs: "/rootfs",
		Namespaces: Namespaces{Net: "/ns/net", UTS: "/ns/uts", IPC: "/ns/ipc"},
		Host: Host{Capabilities: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"},
			OOMScoreAdj: 0},
	}
	change(&in)
	return in
}

func TestCommand(t *testing.T) { // CRI: Container.command and args over ENTRYPOINT and CMD
	for name, c := range map[string]struct{ command, args, want []string }{
		"neither":     {nil, nil, []string{"/entry", "arg"}},
		"args":        {nil, []string{"x"}, []string{"/entry", "x"}},
		"command":     {[]string{"/cmd"}, nil, []string{"/cmd"}},
		"both":        {[]string{"/cmd"}, []string{"x"}, []string{"/cmd", "x"}},
		"empty first": {[]string{""}, nil, nil},
	} {
		s, err := Spec(input(func(in *Input) { in.Config.Command, in.Config.Args = c.command, c.args }))
		if c.want == nil {
			if !errors.Is(err, ErrNoCommand) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || !slices.Equal(s.Process.Args, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, s.Process.Args, err, c.want)
		}
	}
}

func TestEnvironmentAndDirectory(t *testing.T) {
	s, err := Spec(input(func(in *Input) {
		in.Config.Envs = []*criv1.KeyValue{{Key: "A", Value: []byte("pod")}, {Key: "B", Value: []byte("x=y")}}
		in.Config.Tty = true
	}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"PATH=/bin", "HOSTNAME=pod", "TERM=xterm", "A=pod", "B=x=y"}, s.Process.Env); diff != "" {
		t.Error(diff)
	}
	if s.Process.Cwd != "/work" || !s.Process.Terminal {
		t.Errorf("cwd %q, terminal %v", s.Process.Cwd, s.Process.Terminal)
	}
}

func TestCapabilities(t *testing.T) {
	for name, c := range map[string]struct {
		add, drop  []string
		privileged bool
		want       []string
	}{
		"default":           {want: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE"}},
		"add":               {add: []string{"NET_ADMIN"}, want: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"}},
		"not to be given":   {add: []string{"SYS_RESOURCE"}, want: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE"}},
		"drop all, add one": {add: []string{"cap_kill"}, drop: []string{"ALL"}, want: []string{"CAP_KILL"}},
		"add all, drop one": {add: []string{"all"}, drop: []string{"KILL"},
			want: []string{"CAP_CHOWN", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"}},
		"privileged has all": {privileged: true, drop: []string{"ALL"},
			want: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"}},
	} {
		s, err := Spec(input(func(in *Input) {
			in.Config.Linux.SecurityContext.Privileged = c.privileged
			in.Config.Linux.SecurityContext.Capabilities = &criv1.Capability{AddCapabilities: c.add,
				DropCapabilities: c.drop}
		}))
		if err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(c.want, s.Process.Capabilities.Bounding); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	_, err := Spec(input(func(in *Input) {
		in.Config.Linux.SecurityContext.Capabilities = &criv1.Capability{AddCapabilities: []string{"FLY"}}
	}))
	if err == nil {
		t.Error("an unknown capability is accepted")
	}
}

func TestNamespacesAndLimits(t *testing.T) {
	s, err := Spec(input(func(in *Input) {
		in.Namespaces.HostPID = true
		in.Config.Linux.Resources = &criv1.LinuxContainerResources{CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000,
			MemoryLimitInBytes: 1 << 20, OomScoreAdj: -997}
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := []specs.LinuxNamespace{
		{Type: "mount"}, {Type: "network", Path: "/ns/net"}, {Type: "uts", Path: "/ns/uts"}, {Type: "ipc", Path: "/ns/ipc"},
	}
	if diff := cmp.Diff(want, s.Linux.Namespaces); diff != "" {
		t.Error(diff)
	}
	r := s.Linux.Resources
	if *r.CPU.Shares != 512 || *r.CPU.Quota != 50000 || *r.CPU.Period != 100000 || *r.Memory.Limit != 1<<20 {
		t.Errorf("resources: %+v %+v", r.CPU, r.Memory)
	}
	if *s.Process.OOMScoreAdj != 0 {
		t.Errorf("oom_score_adj %d is below what the host allows", *s.Process.OOMScoreAdj)
	}
}

// Processes and the runtime's own mounts have the container's labels, in a privileged one
// too.
func TestLabels(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		s, err := Spec(input(func(in *Input) {
			in.Labels = selinux.Labels{Process: "u:r:t:l", File: "u:o:f:l"}
			in.Config.Linux.SecurityContext.Privileged = privileged
		}))
		if err != nil {
			t.Fatal(err)
		}
		if s.Process.SelinuxLabel != "u:r:t:l" || s.Linux.MountLabel != "u:o:f:l" {
			t.Errorf("%q, %q", s.Process.SelinuxLabel, s.Linux.MountLabel)
		}
	}
}

func TestMountOptions(t *testing.T) {
	s, err := Spec(input(func(in *Input) {
		in.Files.Shm = "/shm"
		in.Mounts = []Mount{
			{Host: "/a", Container: "/dev/shm"},
			{Host: "/b", Container: "/ro", ReadOnly: true,
				Propagation: criv1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{Host: "/c", Container: "/rro", ReadOnly: true, RecursiveReadOnly: true},
			{Host: "/d", Container: "/both", Propagation: criv1.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, m := range s.Mounts {
		if m.Type == "bind" {
			got[m.Destination+" "+m.Source] = m.Options
		}
	}
	want := map[string][]string{
		"/dev/shm /a": {"rbind", "rprivate", "rw"}, "/ro /b": {"rbind", "rslave", "ro"},
		"/rro /c": {"rbind", "rprivate", "rro"}, "/both /d": {"rbind", "rshared", "rw"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if s.Linux.RootfsPropagation != "rshared" {
		t.Errorf("root propagation %q", s.Linux.RootfsPropagation)
	}
}

// A runtime that makes a sandbox of each container is told its host name, and not to look
// for a sandbox that it has not made.
func TestOwnKernel(t *testing.T) {
	own, err := Spec(input(func(in *Input) { in.OwnKernel = true }))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := own.Annotations["io.kubernetes.cri.container-type"]; ok || own.Hostname != "pod" {
		t.Errorf("annotations %v, host name %q", own.Annotations, own.Hostname)
	}
	shared, err := Spec(input(func(*Input) {}))
	if err != nil {
		t.Fatal(err)
	}
	if shared.Annotations["io.kubernetes.cri.container-type"] != "container" || shared.Hostname != "" {
		t.Errorf("of runc: annotations %v, host name %q", shared.Annotations, shared.Hostname)
	}
	node, err := Spec(input(func(in *Input) { in.OwnKernel, in.Namespaces.UTS = true, "" }))
	if err != nil || node.Hostname != "" { // runtimes refuse one without a namespace for it
		t.Errorf("on the node's network: %q %v", node.Hostname, err)
	}
}
