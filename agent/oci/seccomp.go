package oci

import (
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// defaultSeccomp is containerd's default profile for the capabilities that
// are already set in s, without the x32 calls of amd64: distributions' kernels
// have them switched off, and they are half of the time (10 of 20 ms in crun)
// that an OCI runtime takes to translate the profile, at each start.
func defaultSeccomp(s *specs.Spec) *specs.LinuxSeccomp {
	p := seccomp.DefaultProfile(s)
	p.Architectures = slices.DeleteFunc(p.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	return p
}
