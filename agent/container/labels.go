package container

import (
	"fmt"

	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/selinux"
)

// labels are those that a container asks for, none on a node without SELinux.
func (m *Manager) labels(req Request) (selinux.Labels, error) {
	o := req.Config.GetLinux().GetSecurityContext().GetSelinuxOptions()
	if o == nil || m.cfg.Labels == nil {
		return selinux.Labels{}, nil
	}
	return m.cfg.Labels(selinux.Options{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()})
}

// relabelFiles gives the sandbox's files, which all its containers see, the label of
// the one that is made.
func relabelFiles(f oci.Files, label string) error {
	if label == "" {
		return nil
	}
	for _, path := range []string{f.ResolvConf, f.Hostname, f.Hosts, f.Shm} {
		if path == "" {
			continue
		}
		if err := selinux.Relabel(path, label); err != nil {
			return fmt.Errorf("relabel %s: %w", path, err)
		}
	}
	return nil
}
