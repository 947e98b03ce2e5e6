// Package identity reads what a user's name and groups mean: which node speaks.
package identity

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// Node returns the node that a user speaks for. isNode is true for members of
// system:nodes; name is empty when the user's name is not a node's.
func Node(u user.Info) (name string, isNode bool) {
	if u == nil || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	name, ok := strings.CutPrefix(u.GetName(), "system:node:")
	if !ok {
		return "", true
	}
	return name, true
}
