package oci

import (
	"runtime"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SEC: the default profile filters, for this machine's calls and those of its
// 32-bit programs, and privileged containers have none.
func TestDefaultSeccomp(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		s, err := Spec(input(func(in *Input) {
			in.Config.Linux.SecurityContext.Privileged = privileged
			in.Config.Linux.SecurityContext.Seccomp = &criv1.SecurityProfile{
				ProfileType: criv1.SecurityProfile_RuntimeDefault}
		}))
		if err != nil {
			t.Fatal(err)
		}
		p := s.Linux.Seccomp
		if privileged {
			if p != nil {
				t.Error("a privileged container has a filter")
			}
			continue
		}
		if p == nil || p.DefaultAction != specs.ActErrno || len(p.Syscalls) == 0 {
			t.Fatalf("the default profile: %+v", p)
		}
		if runtime.GOARCH == "amd64" && !slices.Equal(p.Architectures, []specs.Arch{specs.ArchX86_64, specs.ArchX86}) {
			t.Errorf("architectures %v", p.Architectures)
		}
	}
}
