package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

func (h *Host) usersFile(p *v1.Pod) string { return filepath.Join(h.Dir(p), "userns") }

// usersOf gives a pod with a user namespace its users on the node. It keeps
// what it was given first, over restarts of the agent.
func (m *Manager) usersOf(p *v1.Pod) (Users, error) {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return 0, nil
	}
	m.users.Lock()
	defer m.users.Unlock()
	u, err := readUsers(m.Host.usersFile(p))
	if errors.Is(err, fs.ErrNotExist) {
		u, err = m.Host.allocateUsers(p)
	}
	if err != nil {
		return 0, fmt.Errorf("can't allocate user namespace: %w", err)
	}
	return u, nil
}

// allocateUsers gives the pod users that no other pod has. The files of the
// pods are the record.
func (h *Host) allocateUsers(p *v1.Pod) (Users, error) {
	files, err := filepath.Glob(filepath.Join(h.RootDir, "pods", "*", "userns"))
	if err != nil {
		return 0, err
	}
	taken := map[Users]bool{}
	for _, f := range files {
		u, err := readUsers(f)
		if err != nil {
			return 0, err
		}
		taken[u] = true
	}
	u, err := FreeUsers(taken)
	if err != nil {
		return 0, err
	}
	data, err := json.Marshal(u)
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
	return u, os.Rename(file+".tmp", file)
}

func readUsers(file string) (Users, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var u Users
	if err := json.Unmarshal(data, &u); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return u, nil
}
