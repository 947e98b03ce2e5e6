package problem

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/agent/host"
)

// readOnly is the reason of the condition, "" when each path can be written; mounts are
// what the paths are on.
func readOnly(mounts map[string]host.Mount) (reason, message string) {
	paths := map[host.Mount][]string{}
	for path, m := range mounts {
		if m.ReadOnly || m.Failed {
			paths[m] = append(paths[m], path)
		}
	}
	if len(paths) == 0 {
		return "", ""
	}
	var parts []string
	order := slices.SortedFunc(maps.Keys(paths), func(a, b host.Mount) int { return cmp.Compare(a.Point, b.Point) })
	for _, m := range order {
		what := "is read-only"
		if m.Failed {
			what = "lets nothing be written after an error"
		}
		slices.Sort(paths[m])
		parts = append(parts, m.Point+" ("+m.Device+") "+what+": the node writes "+strings.Join(paths[m], " and ")+" there")
	}
	return reasonReadOnly, strings.Join(parts, "; ")
}
