package launch

import (
	"encoding/json"
	"errors"
	"fmt"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usersPerPod is the kubelet's default of userNamespaces.idsPerPod (KEP-127).
// Pods get ranges of this length at its multiples; the node's own users have
// the first.
const usersPerPod = 65536

// Users is the first of the users on the node that a pod's users and groups
// are; zero is a pod with the node's own. Its JSON is the kubelet's file
// "userns" in a pod's directory.
type Users uint32

type idMapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type idMappings struct {
	UIDs []idMapping `json:"uidMappings"`
	GIDs []idMapping `json:"gidMappings"`
}

// MarshalJSON writes the kubelet's file.
func (u Users) MarshalJSON() ([]byte, error) {
	ids := []idMapping{{HostID: uint32(u), Length: usersPerPod}}
	return json.Marshal(idMappings{UIDs: ids, GIDs: ids})
}

// UnmarshalJSON reads the kubelet's file.
func (u *Users) UnmarshalJSON(data []byte) error {
	var m idMappings
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] ||
		m.UIDs[0].Length != usersPerPod || m.UIDs[0].HostID%usersPerPod != 0 || m.UIDs[0].HostID == 0 {
		return fmt.Errorf("not one range of %d users and groups", usersPerPod)
	}
	*u = Users(m.UIDs[0].HostID)
	return nil
}

// FreeUsers is the lowest range that no other pod has.
func FreeUsers(taken map[Users]bool) (Users, error) {
	first := Users(usersPerPod)
	for taken[first] {
		if first += usersPerPod; first == 0 {
			return 0, errors.New("all ranges of user IDs are taken")
		}
	}
	return first, nil
}

// namespace is the CRI's form, nil for a pod with the node's users.
func (u Users) namespace() *criv1.UserNamespace {
	if u == 0 {
		return nil
	}
	ids := []*criv1.IDMapping{{HostId: uint32(u), Length: usersPerPod}}
	return &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD, Uids: ids, Gids: ids}
}
