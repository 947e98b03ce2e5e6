package upgrade

import (
	"fmt"
	"regexp"
	"strconv"
)

// leading are the numbers that a version begins with, as the programs, dpkg or rpm
// write it: v1.36.3+shoal, 1.36.4~rc.1+meta.
var leading = regexp.MustCompile(`^v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:[-+~].*)?$`)

func numbers(version string) (n [3]int, err error) {
	m := leading.FindStringSubmatch(version)
	if m == nil {
		return n, fmt.Errorf("%q is no version: MAJOR.MINOR.PATCH", version)
	}
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1]) // nine digits
	}
	return n, nil
}

// Fits tells why one version may not follow another. Programs of neighbouring minors
// work together, and read what the older one has written: one minor up at a time, and
// back only within a minor.
func Fits(from, to string) error {
	old, err := numbers(from)
	if err != nil {
		return fmt.Errorf("this machine's version: %w", err)
	}
	next, err := numbers(to)
	if err != nil {
		return fmt.Errorf("the package's version: %w", err)
	}
	switch {
	case next[0] != old[0]:
		return fmt.Errorf("%s follows %s with another major version", to, from)
	case next[1] < old[1]:
		return fmt.Errorf("%s is of an older minor version than %s, whose store and records it may not be able to read",
			to, from)
	case next[1] > old[1]+1:
		return fmt.Errorf("%s is more than one minor version after %s: go by v%d.%d", to, from, old[0], old[1]+1)
	}
	return nil
}
