package cgroup

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// Driver is who makes control groups, and by that how they are named.
type Driver string

// The drivers that the kubelet has. With systemd every group of pods is a
// slice unit and every container a scope unit (systemd.slice(5)).
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

const (
	slice = ".slice"
	scope = ".scope"
	// scopePrefix begins the names of containers' scopes.
	scopePrefix = "shoal"
)

// Child is the path of a group of groups below parent, which "" and "/" name
// the top for. systemd takes no "-" within a level's name: it becomes "_".
func (d Driver) Child(parent string, names ...string) string {
	at := filepath.Join("/", parent)
	for _, name := range names {
		if d != Systemd {
			at = filepath.Join(at, name)
			continue
		}
		prefix := strings.TrimSuffix(path.Base(at), slice) + "-"
		if at == "/" {
			prefix = ""
		}
		at = filepath.Join(at, prefix+strings.ReplaceAll(name, "-", "_")+slice)
	}
	return at
}

// Container is the path of the group that an OCI runtime makes for a
// container below the group parent.
func (d Driver) Container(parent, id string) string {
	if d != Systemd {
		return filepath.Join(parent, id)
	}
	return filepath.Join(parent, scopePrefix+"-"+id+scope)
}

// OCIPath is a container's group in the form that the runtime specification
// of an OCI runtime has: slice:prefix:name for systemd.
func (d Driver) OCIPath(group string) string {
	if d != Systemd {
		return group
	}
	id := strings.TrimSuffix(strings.TrimPrefix(path.Base(group), scopePrefix+"-"), scope)
	return path.Base(path.Dir(group)) + ":" + scopePrefix + ":" + id
}

// Expand is the whole path of a group that a CRI client names. For systemd
// the last slice's name says it all: a-b.slice lies in a.slice.
func (d Driver) Expand(group string) (string, error) {
	if d != Systemd {
		return group, nil
	}
	name, ok := strings.CutSuffix(path.Base(group), slice)
	if !ok || name == "" || strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-") || strings.Contains(name, "--") {
		return "", fmt.Errorf("cgroup parent %q: the systemd driver needs the name of a slice", group)
	}
	at, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		at = filepath.Join(at, prefix+part+slice)
		prefix += part + "-"
	}
	return at, nil
}
