package cgroup

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Named lists the groups below path that have part in their name, the deepest
// first; none if path does not exist.
func (r *Root) Named(path, part string) []string {
	var out []string
	if part == "" {
		return nil
	}
	for _, top := range r.memberships(path) {
		_ = filepath.WalkDir(top, func(dir string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return nil // a group may go at any time
			}
			if rel, err := filepath.Rel(top, dir); err == nil && dir != top && strings.Contains(e.Name(), part) {
				out = append(out, filepath.Join("/", path, rel))
			}
			return nil
		})
	}
	slices.Sort(out)
	out = slices.Compact(out)
	slices.Reverse(out)
	return out
}
