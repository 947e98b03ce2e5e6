package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// idsPerPod is the kubelet's default of userNamespaces.idsPerPod (KEP-127).
// Pods get ranges of this length at its multiples; the node's own users have
// the first.
const idsPerPod = 65536

// idMapping and mappings are the kubelet's file "userns" in a pod's directory.
type idMapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type mappings struct {
	UIDs []idMapping `json:"uidMappings"`
	GIDs []idMapping `json:"gidMappings"`
}

func (h *Host) usersFile(p *v1.Pod) string { return filepath.Join(h.Dir(p), "userns") }

// userNamespace is the pod's mapping of users, nil for a pod with the node's.
// A pod keeps what it was given first, over restarts of the agent.
func (h *Host) userNamespace(p *v1.Pod) (*runtimeapi.UserNamespace, error) {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return nil, nil
	}
	h.users.Lock()
	defer h.users.Unlock()
	first, err := readUsers(h.usersFile(p))
	if errors.Is(err, fs.ErrNotExist) {
		first, err = h.allocateUsers(p)
	}
	if err != nil {
		return nil, fmt.Errorf("can't allocate user namespace: %w", err)
	}
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: idsPerPod}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// allocateUsers gives the pod the lowest range that no other pod has. The
// files of the pods are the record.
func (h *Host) allocateUsers(p *v1.Pod) (uint32, error) {
	files, err := filepath.Glob(filepath.Join(h.RootDir, "pods", "*", "userns"))
	if err != nil {
		return 0, err
	}
	taken := map[uint32]bool{}
	for _, f := range files {
		first, err := readUsers(f)
		if err != nil {
			return 0, err
		}
		taken[first] = true
	}
	first := uint32(idsPerPod)
	for taken[first] {
		if first += idsPerPod; first == 0 {
			return 0, errors.New("all ranges of user IDs are taken")
		}
	}
	ids := []idMapping{{HostID: first, Length: idsPerPod}}
	data, err := json.Marshal(mappings{UIDs: ids, GIDs: ids})
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(h.Dir(p), 0o750); err != nil {
		return 0, err
	}
	file := h.usersFile(p)
	if err := os.WriteFile(file+".tmp", data, 0o600); err != nil {
		return 0, err
	}
	return first, os.Rename(file+".tmp", file)
}

// readUsers reads the first user of a pod on the node.
func readUsers(file string) (uint32, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var m mappings
	if err := json.Unmarshal(data, &m); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] || m.UIDs[0].Length != idsPerPod || m.UIDs[0].HostID%idsPerPod != 0 {
		return 0, fmt.Errorf("%s: not one range of %d users and groups", file, idsPerPod)
	}
	return m.UIDs[0].HostID, nil
}
