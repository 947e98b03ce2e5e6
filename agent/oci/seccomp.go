package oci

import (
	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// defaultSeccomp is containerd's default profile for the capabilities that
// are already set in s.
func defaultSeccomp(s *specs.Spec) *specs.LinuxSeccomp { return seccomp.DefaultProfile(s) }
