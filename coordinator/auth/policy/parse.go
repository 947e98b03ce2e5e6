package policy

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed policy.txt
var text string

// Policy is a set of roles and bindings.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// Default returns upstream v1.36's default policy. The objects are shared:
// copy before changing one.
var Default = sync.OnceValues(func() (*Policy, error) { return parse(text) })

// Rules returns the rules of a cluster role of the policy, nil when it has none
// of that name.
func (p *Policy) Rules(clusterRole string) []rbacv1.PolicyRule {
	for _, r := range p.ClusterRoles {
		if r.Name == clusterRole {
			return r.Rules
		}
	}
	return nil
}

// parse reads the format that policy.txt describes in its head.
func parse(text string) (*Policy, error) {
	p := &Policy{}
	var detail func(words []string) error
	for n, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		var err error
		switch {
		case !strings.HasPrefix(line, " "):
			detail, err = p.open(words)
		case detail == nil:
			err = fmt.Errorf("detail before any object")
		default:
			err = detail(words)
		}
		if err != nil {
			return nil, fmt.Errorf("policy line %d: %w", n+1, err)
		}
	}
	return p, nil
}

// open starts the object of a head line and returns what reads its details.
func (p *Policy) open(words []string) (func([]string) error, error) {
	if len(words) < 2 {
		return nil, fmt.Errorf("%q: no name", words[0])
	}
	meta := newMeta(words[1])
	switch words[0] {
	case "clusterrole":
		r := &rbacv1.ClusterRole{ObjectMeta: meta}
		p.ClusterRoles = append(p.ClusterRoles, r)
		return ruleReader(&r.Rules), clusterRoleOptions(r, words[2:])
	case "role":
		r := &rbacv1.Role{ObjectMeta: meta}
		p.Roles = append(p.Roles, r)
		return ruleReader(&r.Rules), nil
	}
	if len(words) != 4 {
		return nil, fmt.Errorf("%q: want a name and a role", words[0])
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kinds[words[2]], Name: words[3]}
	switch words[0] {
	case "clusterrolebinding":
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref}
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, b)
		return subjectReader(&b.Subjects), nil
	case "rolebinding":
		b := &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref}
		p.RoleBindings = append(p.RoleBindings, b)
		return subjectReader(&b.Subjects), nil
	}
	return nil, fmt.Errorf("unknown kind %q", words[0])
}

var kinds = map[string]string{
	"clusterrole": "ClusterRole", "role": "Role",
	"user": rbacv1.UserKind, "group": rbacv1.GroupKind, "serviceaccount": rbacv1.ServiceAccountKind,
}

// newMeta gives a default object the label and annotation that mark it as such.
func newMeta(name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	m.Namespace, m.Name = splitName(name)
	return m
}

func splitName(s string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(s, "/"); ok {
		return namespace, name
	}
	return "", s
}

func clusterRoleOptions(r *rbacv1.ClusterRole, options []string) error {
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "label":
			r.Labels[value] = "true"
		case "aggregate":
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
				{MatchLabels: map[string]string{value: "true"}},
			}}
		default:
			return fmt.Errorf("unknown option %q", o)
		}
	}
	return nil
}

func ruleReader(rules *[]rbacv1.PolicyRule) func([]string) error {
	return func(words []string) error {
		if len(words) < 3 || len(words) > 4 {
			return fmt.Errorf("a rule has 3 or 4 words, not %d", len(words))
		}
		rule := rbacv1.PolicyRule{Verbs: list(words[0])}
		if words[1] == "url" {
			rule.NonResourceURLs = list(words[2])
		} else {
			rule.APIGroups, rule.Resources = list(words[1]), list(words[2])
		}
		if len(words) == 4 {
			rule.ResourceNames = list(words[3])
		}
		*rules = append(*rules, rule)
		return nil
	}
}

func subjectReader(subjects *[]rbacv1.Subject) func([]string) error {
	return func(words []string) error {
		if len(words) != 2 || kinds[words[0]] == "" {
			return fmt.Errorf("bad subject %q", words)
		}
		s := rbacv1.Subject{Kind: kinds[words[0]]}
		s.Namespace, s.Name = splitName(words[1])
		if s.Kind != rbacv1.ServiceAccountKind {
			s.APIGroup = rbacv1.GroupName
		}
		*subjects = append(*subjects, s)
		return nil
	}
}

// list splits a comma list; core stands for the empty API group.
func list(s string) []string {
	out := strings.Split(s, ",")
	for i := range out {
		if out[i] == "core" {
			out[i] = ""
		}
	}
	return out
}
