package pod

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
)

func (m *Manager) usersFile(p *corev1.Pod) string { return filepath.Join(m.Host.Dir(p), "userns") }

// usersOf gives a pod with a user namespace its users on the node. It keeps
// what it was given first, over restarts of the agent.
func (m *Manager) usersOf(p *corev1.Pod) (launch.Users, error) {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return launch.Users{}, nil
	}
	m.users.Lock()
	defer m.users.Unlock()
	u, err := readUsers(m.usersFile(p))
	if errors.Is(err, fs.ErrNotExist) {
		u, err = m.allocateUsers(p)
	}
	if err != nil {
		return launch.Users{}, fmt.Errorf("can't allocate user namespace: %w", err)
	}
	return u, nil
}

// allocateUsers gives the pod users that no other pod has. The files of the
// pods are the record.
func (m *Manager) allocateUsers(p *corev1.Pod) (launch.Users, error) {
	files, err := filepath.Glob(filepath.Join(m.Host.RootDir, "pods", "*", "userns"))
	if err != nil {
		return launch.Users{}, err
	}
	var taken []launch.Users
	for _, f := range files {
		u, err := readUsers(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a pod that was removed meanwhile
		}
		if err != nil {
			return launch.Users{}, err
		}
		taken = append(taken, u)
	}
	u, err := launch.FreeUsers(taken, cmp.Or(m.Host.UsersPerPod, launch.UsersPerPod))
	if err != nil {
		return launch.Users{}, err
	}
	data, err := json.Marshal(u)
	if err != nil {
		return launch.Users{}, err
	}
	if err := os.MkdirAll(m.Host.Dir(p), 0o750); err != nil {
		return launch.Users{}, err
	}
	file := m.usersFile(p)
	if err := os.WriteFile(file+".tmp", data, 0o600); err != nil {
		return launch.Users{}, err
	}
	return u, os.Rename(file+".tmp", file)
}

func readUsers(file string) (launch.Users, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return launch.Users{}, err
	}
	var u launch.Users
	if err := json.Unmarshal(data, &u); err != nil {
		return launch.Users{}, fmt.Errorf("%s: %w", file, err)
	}
	return u, nil
}
