package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHugetlb: huge pages are limited by the groups that pods have, and where they are not, it
// is told whether the others could.
func TestHugetlb(t *testing.T) {
	for name, c := range map[string]struct {
		files []string // with the controllers, or directories
		v2    bool
		says  string
	}{
		"v2":                  {[]string{"cgroup.controllers=cpu hugetlb"}, true, ""},
		"v2_without":          {[]string{"cgroup.controllers=cpu memory"}, true, "no control group controller"},
		"v1":                  {[]string{"hugetlb/"}, false, ""},
		"v1_without":          {[]string{"memory/"}, false, "is not mounted"},
		"both_in_v1":          {[]string{"hugetlb/", "unified/cgroup.controllers="}, false, ""},
		"both_in_v2":          {[]string{"memory/", "unified/cgroup.controllers=hugetlb"}, false, "in version 2 alone"},
		"both_but_no_hugetlb": {[]string{"memory/", "unified/cgroup.controllers=cpu"}, false, "is not mounted"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range c.files {
				path, text, is := strings.Cut(f, "=")
				path = filepath.Join(dir, path)
				err := os.MkdirAll(filepath.Dir(path), 0o755)
				if is {
					err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
				} else {
					err = errors.Join(err, os.MkdirAll(path, 0o755))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := noHugetlb(dir, c.v2); c.says == "" && got != "" || !strings.Contains(got, c.says) {
				t.Errorf("it says %q, not %q", got, c.says)
			}
		})
	}
}
