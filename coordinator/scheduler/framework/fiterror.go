package framework

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// FitError tells why a pod fits no node, in upstream's words.
type FitError struct {
	NumAllNodes int
	// PreFilter is the reason that holds for all nodes, if there is one.
	PreFilter string
	// Reasons counts the nodes by reason.
	Reasons map[string]int
	// PostFilter is what the attempt to make room said.
	PostFilter string
	// RejectedBy and PendingOn are the plugins that refused.
	RejectedBy, PendingOn sets.Set[string]
}

// Error implements error.
func (e *FitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "0/%v nodes are available:", e.NumAllNodes)
	if e.PreFilter != "" {
		fmt.Fprintf(&b, " %v.", e.PreFilter)
	} else if len(e.Reasons) > 0 {
		lines := make([]string, 0, len(e.Reasons))
		for reason, n := range e.Reasons {
			lines = append(lines, fmt.Sprintf("%v %v", n, reason))
		}
		slices.Sort(lines)
		fmt.Fprintf(&b, " %v.", strings.Join(lines, ", "))
	}
	if e.PostFilter != "" {
		fmt.Fprintf(&b, " %v", e.PostFilter)
	}
	return b.String()
}

// Blame notes the plugin that gave the verdict.
func (e *FitError) Blame(st *Status) {
	switch {
	case st.Plugin == "":
	case st.Is(Pending):
		e.PendingOn.Insert(st.Plugin)
	default:
		e.RejectedBy.Insert(st.Plugin)
	}
}
