package rbac

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func expect(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	got := ""
	if err := errs.ToAggregate(); err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestValidateRules(t *testing.T) {
	one := []string{"x"}
	for name, tt := range map[string]struct {
		rule       rbacv1.PolicyRule
		namespaced bool
		want       string
	}{
		"resource":     {rbacv1.PolicyRule{Verbs: one, APIGroups: one, Resources: one}, true, ""},
		"url":          {rbacv1.PolicyRule{Verbs: one, NonResourceURLs: one}, false, ""},
		"url_in_role":  {rbacv1.PolicyRule{Verbs: one, NonResourceURLs: one}, true, `rules[0].nonResourceURLs: Invalid value: ["x"]: namespaced rules cannot apply to non-resource URLs`},
		"both":         {rbacv1.PolicyRule{Verbs: one, NonResourceURLs: one, Resources: one}, false, `rules[0].nonResourceURLs: Invalid value: ["x"]: rules cannot apply to both regular resources and non-resource URLs`},
		"no_verbs":     {rbacv1.PolicyRule{APIGroups: one, Resources: one}, true, "rules[0].verbs: Required value: verbs must contain at least one value"},
		"no_groups":    {rbacv1.PolicyRule{Verbs: one, Resources: one}, true, "rules[0].apiGroups: Required value: resource rules must supply at least one api group"},
		"no_resources": {rbacv1.PolicyRule{Verbs: one, APIGroups: one}, true, "rules[0].resources: Required value: resource rules must supply at least one resource"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, validateRules([]rbacv1.PolicyRule{tt.rule}, tt.namespaced), tt.want)
		})
	}
}

func TestValidateBinding(t *testing.T) {
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	for name, tt := range map[string]struct {
		ref        rbacv1.RoleRef
		subject    rbacv1.Subject
		namespaced bool
		want       string
	}{
		"role":              {ref("Role", "system:x"), rbacv1.Subject{Kind: "User", Name: "u"}, true, ""},
		"role_cluster_wide": {ref("Role", "x"), rbacv1.Subject{Kind: "User", Name: "u"}, false, `roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"`},
		"other_kind":        {ref("Robot", "x"), rbacv1.Subject{Kind: "User", Name: "u"}, true, `roleRef.kind: Unsupported value: "Robot": supported values: "Role", "ClusterRole"`},
		"no_role_name":      {ref("Role", ""), rbacv1.Subject{Kind: "User", Name: "u"}, true, "roleRef.name: Required value"},
		"path_in_role_name": {ref("Role", "a/b"), rbacv1.Subject{Kind: "User", Name: "u"}, true, `roleRef.name: Invalid value: "a/b": may not contain '/'`},
		"other_group": {rbacv1.RoleRef{APIGroup: "x", Kind: "Role", Name: "r"},
			rbacv1.Subject{Kind: "User", Name: "u"}, true, `roleRef.apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"`},
		"account": {ref("ClusterRole", "x"),
			rbacv1.Subject{Kind: "ServiceAccount", Name: "a", Namespace: "n"}, false, ""},
		"account_no_ns":  {ref("ClusterRole", "x"), rbacv1.Subject{Kind: "ServiceAccount", Name: "a"}, false, "subjects[0].namespace: Required value"},
		"account_own_ns": {ref("ClusterRole", "x"), rbacv1.Subject{Kind: "ServiceAccount", Name: "a"}, true, ""},
		"account_group": {ref("ClusterRole", "x"),
			rbacv1.Subject{Kind: "ServiceAccount", Name: "a", Namespace: "n", APIGroup: "g"}, false, `subjects[0].apiGroup: Unsupported value: "g": supported values: ""`},
		"unknown_subject": {ref("ClusterRole", "x"), rbacv1.Subject{Kind: "Fish", Name: "a"}, false, `subjects[0].kind: Unsupported value: "Fish": supported values: "ServiceAccount", "User", "Group"`},
		"nameless":        {ref("ClusterRole", "x"), rbacv1.Subject{Kind: "Group"}, false, "subjects[0].name: Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			subjects := []rbacv1.Subject{tt.subject}
			defaultBinding(&tt.ref, subjects)
			expect(t, validateBinding(&tt.ref, subjects, tt.namespaced), tt.want)
		})
	}
	expect(t, sameRef(ref("Role", "a"), ref("Role", "a")), "")
	if errs := sameRef(ref("Role", "b"), ref("Role", "a")); len(errs) != 1 || !strings.HasSuffix(errs[0].Error(), "cannot change roleRef") {
		t.Errorf("changed roleRef: %v", errs)
	}
}

func TestValidateAggregation(t *testing.T) {
	expect(t, validateAggregation(nil, nil), "")
	expect(t, validateAggregation(&rbacv1.AggregationRule{}, nil),
		"aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil")
	expect(t,
		validateAggregation(
			&rbacv1.AggregationRule{
				ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}}, nil), "")
}

func TestDescribeMissing(t *testing.T) {
	got := describe([]rbacv1.PolicyRule{
		{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/x"}},
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}},
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"a"}},
	})
	want := []string{
		`{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}`,
		`{APIGroups:[""], Resources:["secrets"], Verbs:["list" "get"]}`,
		`{NonResourceURLs:["/x"], Verbs:["get"]}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q", got)
	}
}
