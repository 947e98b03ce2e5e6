package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Allows says whether one rule allows a request.
func Allows(a authorizer.Attributes, rule *rbacv1.PolicyRule) bool {
	if !hasOrAll(rule.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return matchesURL(rule.NonResourceURLs, a.GetPath())
	}
	return hasOrAll(rule.APIGroups, a.GetAPIGroup()) &&
		matchesResource(rule.Resources, a.GetResource(), a.GetSubresource()) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

// AllowsAny says whether any of the rules allows a request.
func AllowsAny(a authorizer.Attributes, rules []rbacv1.PolicyRule) bool {
	for i := range rules {
		if Allows(a, &rules[i]) {
			return true
		}
	}
	return false
}

func hasOrAll(list []string, s string) bool {
	for _, v := range list {
		if v == s || v == "*" {
			return true
		}
	}
	return false
}

// matchesResource compares what is asked for as one string, "pods/log": a review
// may have a slash in its resource and no subresource. "*/log" is the subresource
// of any resource, and is asked by its name only.
func matchesResource(list []string, resource, subresource string) bool {
	whole := resource
	if subresource != "" {
		whole += "/" + subresource
	}
	for _, v := range list {
		if v == "*" || v == whole || subresource != "" && v == "*/"+subresource {
			return true
		}
	}
	return false
}

// matchesURL knows exact paths and beginnings of paths, which end with "*".
func matchesURL(list []string, path string) bool {
	for _, v := range list {
		if v == path || v == "*" {
			return true
		}
		if strings.HasSuffix(v, "*") && strings.HasPrefix(path, strings.TrimRight(v, "*")) {
			return true
		}
	}
	return false
}
