package rbac

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestAllows(t *testing.T) {
	resource := func(verb, group, resource, sub, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Subresource: sub,
			Name: name, ResourceRequest: true}
	}
	path := func(verb, p string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: p}
	}
	rule := func(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verbs}, APIGroups: []string{groups},
			Resources: []string{resources}, ResourceNames: names}
	}
	url := func(p string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{p}}
	}
	for name, tt := range map[string]struct {
		rule rbacv1.PolicyRule
		attr authorizer.AttributesRecord
		want bool
	}{
		"exact":                    {rule("get", "", "pods"), resource("get", "", "pods", "", "x"), true},
		"other_verb":               {rule("get", "", "pods"), resource("list", "", "pods", "", ""), false},
		"other_group":              {rule("get", "", "pods"), resource("get", "apps", "pods", "", ""), false},
		"all":                      {rule("*", "*", "*"), resource("x", "y", "z", "s", ""), true},
		"resource_not_subresource": {rule("get", "", "pods"), resource("get", "", "pods", "log", ""), false},
		"subresource":              {rule("get", "", "pods/log"), resource("get", "", "pods", "log", ""), true},
		"subresource_not_resource": {rule("get", "", "pods/log"), resource("get", "", "pods", "", ""), false},
		"any_scale": {rule("get", "*", "*/scale"),
			resource("get", "apps", "deployments", "scale", ""), true},
		"any_scale_is_not_any":  {rule("get", "*", "*/scale"), resource("get", "apps", "deployments", "", ""), false},
		"trailing_slash":        {rule("get", "", "pods/"), resource("get", "", "pods", "", ""), false},
		"named":                 {rule("get", "", "pods", "a"), resource("get", "", "pods", "", "a"), true},
		"named_other":           {rule("get", "", "pods", "a"), resource("get", "", "pods", "", "b"), false},
		"named_list":            {rule("list", "", "pods", "a"), resource("list", "", "pods", "", ""), false},
		"url":                   {url("/healthz"), path("get", "/healthz"), true},
		"url_below":             {url("/healthz"), path("get", "/healthz/etcd"), false},
		"url_prefix":            {url("/healthz/*"), path("get", "/healthz/etcd"), true},
		"url_stars":             {url("/healthz/**"), path("get", "/healthz/etcd"), true},
		"url_rule_for_resource": {url("*"), resource("get", "", "pods", "", ""), false},
		"resource_rule_for_url": {rule("get", "*", "*"), path("get", "/metrics"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Allows(tt.attr, &tt.rule); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

// TestResources has a line a rule and a column a request: resource, subresource.
// A request and a review of each are decided by the same comparison.
func TestResources(t *testing.T) {
	asked := [][2]string{{"pods", ""}, {"pods", "log"}, {"pods/log", ""}, {"pods/log", "x"}, {"pods", "log/x"},
		{"nodes", "log"}, {"nodes/log", ""}, {"", "log"}, {"/log", ""}, {"*", ""}, {"*", "log"}, {"*/log", ""},
		{"pods", "*"}, {"pods/*", ""}, {"pods/", ""}, {"", ""}}
	for rule, want := range map[string]string{
		"*":          "yyyyyyyyyyyyyyyy",
		"pods":       "y...............",
		"pods/log":   ".yy.............",
		"pods/log/x": "...yy...........",
		"*/log":      ".y...y.y..yy....",
		"*/x":        "...y............",
		"*/log/x":    "....y...........",
		"/log":       ".......yy.......",
		"pods/*":     "............yy..",
		"*/*":        "............y...",
		"pods/":      "..............y.",
		"*/":         "................",
		"":           "...............y",
	} {
		got := ""
		for _, a := range asked {
			attrs := authorizer.AttributesRecord{Verb: "get", Resource: a[0], Subresource: a[1], ResourceRequest: true}
			if Allows(attrs,
				&rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{rule}}) {
				got += "y"
			} else {
				got += "."
			}
		}
		if got != want {
			t.Errorf("rule %q:\ngot  %s\nwant %s, of %q", rule, got, want, asked)
		}
	}
}

// TestRepeats: a binding that names a user in several ways counts once, and is
// described by the first of them.
func TestRepeats(t *testing.T) {
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
	subjects := []rbacv1.Subject{{Kind: "User", Name: "other"}, {Kind: "Group", Name: "ops"}, {Kind: "Group", Name: "dev"},
		{Kind: "User", Name: "anna"}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}
	a := connect(t,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{rule}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: ref, Subjects: subjects},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"}, RoleRef: ref, Subjects: subjects})
	anna := &user.DefaultInfo{Name: "anna", Groups: []string{"dev", "ops", "dev"}}
	for namespace, want := range map[string]int{"": 1, "n": 2, "m": 1} {
		rules, err := a.RulesFor(t.Context(), anna, namespace)
		if err != nil || len(rules) != want {
			t.Errorf("namespace %q: %d rules, want %d: %v, %v", namespace, len(rules), want, rules, err)
		}
	}
	_, reason, err := a.Authorize(t.Context(),
		authorizer.AttributesRecord{User: anna, Verb: "get", Resource: "pods", ResourceRequest: true})
	want := `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "ops"`
	if reason != want || err != nil {
		t.Errorf("got %q, %v, want %q", reason, err, want)
	}
}

func TestAuthorize(t *testing.T) {
	read := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	role := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	named := func(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }
	a := connect(t,
		&rbacv1.ClusterRole{ObjectMeta: named("", "reader"), Rules: read},
		&rbacv1.Role{ObjectMeta: named("n1", "local"), Rules: read},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named("", "everywhere"), RoleRef: role("ClusterRole", "reader"),
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "other"}, {Kind: "Group", Name: "ops"}}},
		&rbacv1.RoleBinding{ObjectMeta: named("n1", "here"), RoleRef: role("ClusterRole", "reader"),
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "anna"}}},
		&rbacv1.RoleBinding{ObjectMeta: named("n1", "robot"), RoleRef: role("Role", "local"),
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "bot"}}},
		&rbacv1.RoleBinding{ObjectMeta: named("n1", "dangling"), RoleRef: role("Role", "gone"),
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "ben"}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named("", "no-namespace"), RoleRef: role("ClusterRole", "reader"),
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "lost"}}},
	)
	for name, tt := range map[string]struct {
		user      user.DefaultInfo
		namespace string
		allow     bool
		reason    string
	}{
		"group":                     {user.DefaultInfo{Name: "x", Groups: []string{"ops"}}, "n2", true, `RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "reader" to Group "ops"`},
		"user":                      {user.DefaultInfo{Name: "anna"}, "n1", true, `RBAC: allowed by RoleBinding "here/n1" of ClusterRole "reader" to User "anna"`},
		"other_namespace":           {user.DefaultInfo{Name: "anna"}, "n2", false, ""},
		"cluster_wide":              {user.DefaultInfo{Name: "anna"}, "", false, ""},
		"service_account":           {user.DefaultInfo{Name: "system:serviceaccount:n1:bot"}, "n1", true, `RBAC: allowed by RoleBinding "robot/n1" of Role "local" to ServiceAccount "bot/n1"`},
		"no_role":                   {user.DefaultInfo{Name: "ben"}, "n1", false, `RBAC: role.rbac.authorization.k8s.io "gone" not found`},
		"group_is_no_user":          {user.DefaultInfo{Name: "ops"}, "n1", false, ""},
		"account_without_namespace": {user.DefaultInfo{Name: "system:serviceaccount::lost"}, "n1", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			decision, reason, err := a.Authorize(context.Background(), authorizer.AttributesRecord{
				User: &tt.user, Verb: "get", Namespace: tt.namespace, Resource: "pods", Name: "p", ResourceRequest: true,
			})
			if err != nil || (decision == authorizer.DecisionAllow) != tt.allow || reason != tt.reason {
				t.Errorf("got %v %q %v", decision, reason, err)
			}
		})
	}
}

func connect(t testing.TB, objects ...runtime.Object) *Authorizer {
	t.Helper()
	a := New()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	if err := a.Connect(factory); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	if !a.HasSynced() {
		t.Fatal("not synced")
	}
	return a
}

// BenchmarkAuthorize has a thousand namespaces with a binding each and a
// thousand cluster-wide ones: a decision must not see those of others.
func BenchmarkAuthorize(b *testing.B) {
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
	objects := []runtime.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{rule}}}
	for i := range 1000 {
		name := "u" + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		subjects := []rbacv1.Subject{{Kind: "User", Name: name}}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}
		objects = append(objects,
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "b"},
				RoleRef: ref, Subjects: subjects},
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref,
				Subjects: []rbacv1.Subject{{Kind: "Group", Name: name}}})
	}
	a := connect(b, objects...)
	attrs := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "uaaa", Groups: []string{"system:authenticated", "team"}},
		Verb: "get", Namespace: "uaaa", Resource: "pods", Name: "p", ResourceRequest: true,
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _, _ := a.Authorize(context.Background(), attrs); d != authorizer.DecisionAllow {
			b.Fatal(d)
		}
	}
}
