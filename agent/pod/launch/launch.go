package launch

import (
	"path/filepath"
	"slices"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// contributor adds its part to a draft. It adds beside what is there, and
// reads of it only what the lists below say.
type contributor[Draft any] struct {
	name string
	add  func(Draft) error
}

// containerContributors is the ordered list of what makes a container. An
// error keeps it from being created, and shows as CreateContainerConfigError.
var containerContributors = []contributor[*container]{
	{"identity", containerIdentity},
	{"security", containerSecurity},
	{"plugins", plugins}, // its variables go below those of the spec
	{"environment", environment},
	{"process", process}, // expanded by the environment
	{"volumes", volumes}, // paths may be made of the environment
	{"devices", devices},
	{"claims", claims},
	{"files", files}, // unless a volume is mounted there
	{"resources", containerResources},
}

// sandboxContributors is the ordered list of what makes a sandbox.
var sandboxContributors = []contributor[*sandbox]{
	{"identity", sandboxIdentity},
	{"network", network},
	{"security", sandboxSecurity},
	{"sysctls", sysctls},
	{"resources", sandboxResources},
}

// container is a container's configuration while contributors add to it.
type container struct {
	*Facts
	config *criv1.ContainerConfig
	files  []File
}

// sandbox is a sandbox's configuration while contributors add to it.
type sandbox struct {
	*SandboxFacts
	config *criv1.PodSandboxConfig
}

// Container is the CRI's form of a container, and the files that must be there
// before it is created.
func Container(f *Facts) (*criv1.ContainerConfig, []File, error) {
	c := newContainer(f)
	if err := contribute(c, containerContributors); err != nil {
		return nil, nil, err
	}
	c.sortMounts()
	return c.config, c.files, nil
}

func newContainer(f *Facts) *container {
	return &container{Facts: f, config: &criv1.ContainerConfig{Linux: &criv1.LinuxContainerConfig{}}}
}

// sortMounts puts the outer ones first, so that none hides another.
func (c *container) sortMounts() {
	depth := func(m *criv1.Mount) int { return strings.Count(filepath.Clean(m.ContainerPath), "/") }
	slices.SortStableFunc(c.config.Mounts, func(a, b *criv1.Mount) int { return depth(a) - depth(b) })
}

// Sandbox is the CRI's form of a pod.
func Sandbox(f *SandboxFacts) (*criv1.PodSandboxConfig, error) {
	s := newSandbox(f)
	if err := contribute(s, sandboxContributors); err != nil {
		return nil, err
	}
	return s.config, nil
}

func newSandbox(f *SandboxFacts) *sandbox {
	return &sandbox{SandboxFacts: f, config: &criv1.PodSandboxConfig{Linux: &criv1.LinuxPodSandboxConfig{}}}
}

func contribute[Draft any](draft Draft, list []contributor[Draft]) error {
	for _, c := range list {
		if err := c.add(draft); err != nil {
			return err
		}
	}
	return nil
}
