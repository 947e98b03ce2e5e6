package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/shoal-project/shoal/agent/netns"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is one pod's record. A published value is never changed.
type Sandbox struct {
	ID        string
	Config    *criv1.PodSandboxConfig
	Handler   string // RuntimeClass handler, "" = default
	CreatedAt time.Time
	Ready     bool
	Networked bool   // the network may have been set up and must be torn down
	Network   string `json:",omitempty"` // the one that connects it; "" in records of before it was told
	IPs       []netip.Addr
	Pins      netns.Pins
	PIDPin    string // shared PID namespace, "" = each container its own
	HolderPID int    // pause process: the first of the shared PID namespace
	Cgroup    string // parent group of the containers
	OwnCgroup bool   // the group was made here and goes with the sandbox
	Dir       string // directory of the pod's files
}

// NewID makes a sandbox or container ID: 64 hexadecimal digits.
func NewID() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// Namespace options of the pod.
func (s *Sandbox) options() *criv1.NamespaceOption { return Options(s.Config) }

// Options are the pod's namespace modes.
func Options(c *criv1.PodSandboxConfig) *criv1.NamespaceOption {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// UserNamespace is how the pod's users are mapped, nil for the node's users.
// One range each, from 0 on, is all that the kubelet asks for (KEP-127).
func UserNamespace(c *criv1.PodSandboxConfig) (*criv1.UserNamespace, error) {
	u := Options(c).GetUsernsOptions()
	switch {
	case u == nil || u.GetMode() == criv1.NamespaceMode_NODE:
		return nil, nil
	case u.GetMode() != criv1.NamespaceMode_POD:
		return nil, fmt.Errorf("unsupported user namespace mode %v: %w", u.GetMode(), errdefs.ErrInvalidArgument)
	}
	for _, list := range [][]*criv1.IDMapping{u.GetUids(), u.GetGids()} {
		if len(list) != 1 || list[0].GetContainerId() != 0 || list[0].GetLength() == 0 {
			return nil, fmt.Errorf("unsupported user namespace mapping %v: want one, of container ID 0: %w", list,
				errdefs.ErrInvalidArgument)
		}
	}
	return u, nil
}

// HostNetwork tells whether the pod uses the node's network.
func (s *Sandbox) HostNetwork() bool { return s.options().GetNetwork() == criv1.NamespaceMode_NODE }

// NetNS is the pod's network namespace, "" for the node's.
func (s *Sandbox) NetNS() string { return s.Pins.Net }

// UID is the pod's UID.
func (s *Sandbox) UID() string { return s.Config.GetMetadata().GetUid() }

// ResolvConf, HostnameFile, HostsFile and Shm are the pod's files.
func (s *Sandbox) ResolvConf() string   { return filepath.Join(s.Dir, "resolv.conf") }
func (s *Sandbox) HostnameFile() string { return filepath.Join(s.Dir, "hostname") }
func (s *Sandbox) HostsFile() string    { return filepath.Join(s.Dir, "hosts") }

// Shm is the pod's /dev/shm; pods in the node's IPC namespace see the node's.
func (s *Sandbox) Shm() string {
	if s.options().GetIpc() == criv1.NamespaceMode_NODE {
		return "/dev/shm"
	}
	return filepath.Join(s.Dir, "shm")
}
