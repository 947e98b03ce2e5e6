// Package page writes what a tool measured between two marks of a page of the
// documentation.
package page

import (
	"fmt"
	"os"
	"strings"
)

// Replace puts text between the first mark and the second one that follows it.
func Replace(file, begin, end, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks %q and %q", file, begin, end)
	}
	return os.WriteFile(file, []byte(before+begin+text+end+after), 0o644)
}
