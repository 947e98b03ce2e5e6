package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// containerdVersion is what a node of Kubernetes' release has.
	containerdVersion = "github.com/containerd/containerd/v2@v2.4.2"
	pluginsVersion    = "github.com/containernetworking/plugins@v1.9.1"
)

var containerdPrograms = []Program{
	{Name: "containerd", Package: "./cmd/containerd", Tags: "no_btrfs"},
	{Name: "containerd-shim-runc-v2", Package: "./cmd/containerd-shim-runc-v2", Tags: "no_btrfs"},
	{Name: "ctr", Package: "./cmd/ctr", Tags: "no_btrfs"},
}

// containerdPlugins are those that containerd itself wants beside the network's.
var containerdPlugins = []Program{{Name: "cni/loopback", Package: "./plugins/main/loopback"}}

// BuildContainerd builds containerd and what it calls into the directory cache.
func BuildContainerd(ctx context.Context, cache string) error {
	if err := os.MkdirAll(filepath.Join(cache, "cni"), 0o755); err != nil {
		return err
	}
	return errors.Join(
		Build(ctx, containerdVersion, filepath.Join(cache, "src", "containerd"), cache, containerdPrograms),
		Build(ctx, pluginsVersion, filepath.Join(cache, "src", "cni-plugins"), cache, containerdPlugins))
}

// Containerd is one whose pods have the product's network, as its plugin.
type Containerd struct {
	// Programs is what BuildContainerd has built in, Bin has the product's plugin.
	Programs, Bin string
	// Dir holds its socket, configuration and state: its path is short. Root holds images
	// and containers; Dir/root unless it is given.
	Dir, Root string
	Pause     string // image of sandboxes
	// Registries is a directory of hosts.toml files; empty: there are no mirrors.
	Registries string
	Handlers   []string // of RuntimeClasses, beside runc
}

// The pod network is the product's plugin, filled with the range that the agent tells.
const containerdConfig = `version = 3
root = %[1]q
state = %[2]q
[grpc]
address = %[3]q
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = %[4]q
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %[5]q
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [%[6]q, %[7]q]
conf_dir = %[8]q
conf_template = %[9]q
[plugins.'io.containerd.nri.v1.nri']
disable = true
`

const containerdHandler = `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]
runtime_type = "io.containerd.runc.v2"
`

const containerdNetwork = `{"cniVersion": "1.1.0", "name": "shoal", "plugins": [{"type": "shoal-cni", "stateDir": "%s",
  "podCIDRs": [{{range $i, $r := .PodCIDRRanges}}{{if $i}},{{end}}"{{$r}}"{{end}}], "clusterCIDRs": ["10.244.0.0/16"], "capabilities": {"portMappings": true, "bandwidth": true}}]}`

// Socket is where its CRI is.
func (c *Containerd) Socket() string { return filepath.Join(c.Dir, "s") }

// Write writes its configuration.
func (c *Containerd) Write() error {
	in := func(name string) string { return filepath.Join(c.Dir, name) }
	root := c.Root
	if root == "" {
		root = in("root")
	}
	text := fmt.Sprintf(containerdConfig, root, in("state"), c.Socket(), c.Registries, c.Pause,
		c.Bin, filepath.Join(c.Programs, "cni"), in("cni"), in("cni.tmpl"))
	for _, h := range c.Handlers {
		text += fmt.Sprintf(containerdHandler, h)
	}
	if len(c.Handlers) > 0 { // one that is not told of would be gone
		text += fmt.Sprintf(containerdHandler, "runc")
	}
	return errors.Join(
		os.WriteFile(in("containerd.toml"), []byte(text), 0o600),
		os.WriteFile(in("cni.tmpl"), fmt.Appendf(nil, containerdNetwork, in("cni-state")), 0o600))
}

// Command runs it, on a node if it is what a node runs.
func (c *Containerd) Command() []string {
	return []string{"env", "PATH=" + c.Programs + ":" + os.Getenv("PATH"), // of the shim
		filepath.Join(c.Programs, "containerd"), "--config", filepath.Join(c.Dir, "containerd.toml"), "--log-level", "warn"}
}

// Import gives it the images of an archive.
func (c *Containerd) Import(archive string) []string { return c.ctr("images", "import", archive) }

// Containers lists the IDs of its containers.
func (c *Containerd) Containers() []string { return c.ctr("containers", "list", "-q") }

// ctr is a command for what the CRI has of it.
func (c *Containerd) ctr(args ...string) []string {
	return append(strings.Fields(filepath.Join(c.Programs, "ctr")+" --namespace k8s.io --address "+c.Socket()), args...)
}
