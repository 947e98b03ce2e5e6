package launch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/config"
)

// UsersPerPod is the kubelet's default of userNamespaces.idsPerPod (KEP-127). Ranges begin
// at multiples of it and have such a length; the node's own users have the first.
const UsersPerPod = config.UsersPerPod

// Users are those on the node that a pod's users and groups are: Length of them, from First;
// zero is a pod with the node's own. Its JSON is the kubelet's file "userns" in a pod's
// directory.
type Users struct{ First, Length uint32 }

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
	ids := []idMapping{{HostID: u.First, Length: u.Length}}
	return json.Marshal(idMappings{UIDs: ids, GIDs: ids})
}

// UnmarshalJSON reads the kubelet's file.
func (u *Users) UnmarshalJSON(data []byte) error {
	var m idMappings
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] || m.UIDs[0].ContainerID != 0 {
		return errors.New("not one range of users and groups")
	}
	read := Users{First: m.UIDs[0].HostID, Length: m.UIDs[0].Length}
	if read.First%UsersPerPod != 0 || read.Length%UsersPerPod != 0 || read.First == 0 || read.Length == 0 ||
		read.end() > lastUser {
		return fmt.Errorf("not a range of users and groups in steps of %d", UsersPerPod)
	}
	*u = read
	return nil
}

// lastUser is no user's: the kernel takes no range that ends with it.
const lastUser = 1<<32 - 1

func (u Users) end() uint64 { return uint64(u.First) + uint64(u.Length) }

// FreeUsers is the lowest range of a length that shares no users with those that other pods
// have, which may have other lengths.
func FreeUsers(taken []Users, length uint32) (Users, error) {
	taken = slices.SortedFunc(slices.Values(taken), func(a, b Users) int { return cmp.Compare(a.First, b.First) })
	first, long := uint64(max(UsersPerPod, length)), uint64(length)
	for _, other := range taken {
		if first+long <= uint64(other.First) {
			break
		}
		first = (max(first, other.end()) + long - 1) / long * long // the next multiple
	}
	if first+long > lastUser {
		return Users{}, errors.New("all ranges of user IDs are taken")
	}
	return Users{First: uint32(first), Length: length}, nil
}

// namespace is the CRI's form, nil for a pod with the node's users.
func (u Users) namespace() *criv1.UserNamespace {
	if u == (Users{}) {
		return nil
	}
	ids := []*criv1.IDMapping{{HostId: u.First, Length: u.Length}}
	return &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD, Uids: ids, Gids: ids}
}
