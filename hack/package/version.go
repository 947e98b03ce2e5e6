package main

import (
	"fmt"
	"regexp"
	"strings"
)

// version is a semantic version in the parts that dpkg and rpm sort rightly: a
// pre-release comes before its release (~), metadata after it (+).
type version struct{ base, prerelease, metadata string }

var semantic = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?$`)

func parseVersion(text string) (version, error) {
	m := semantic.FindStringSubmatch(text)
	if m == nil {
		return version{}, fmt.Errorf("VERSION %q: use v1.2.3, v1.2.3-rc.1 or v1.2.3+meta", text)
	}
	// A hyphen would begin the packager's own revision.
	plain := func(s string) string { return strings.ReplaceAll(s, "-", ".") }
	return version{base: m[1], prerelease: plain(m[2]), metadata: plain(m[3])}, nil
}
