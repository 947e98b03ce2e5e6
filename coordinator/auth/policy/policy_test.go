package policy

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/auth/rbac/validation"
)

func TestDefaultPolicyReads(t *testing.T) {
	p, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	if rules := p.Rules("cluster-admin"); len(rules) != 2 {
		t.Errorf("cluster-admin has %d rules, want 2", len(rules))
	}
	for _, b := range p.ClusterRoleBindings {
		if p.find(b.RoleRef.Name) == nil {
			t.Errorf("binding %s names an unknown role %s", b.Name, b.RoleRef.Name)
		}
	}
}

func (p *Policy) find(name string) *rbacv1.ClusterRole {
	for _, r := range p.ClusterRoles {
		if r.Name == name {
			return r
		}
	}
	return nil
}

func TestParseRefusesBadLines(t *testing.T) {
	for name, text := range map[string]string{
		"rule_without_object": "  get core pods",
		"unknown_kind":        "thing x",
		"short_rule":          "clusterrole x\n  get core",
		"bad_subject":         "clusterrolebinding x clusterrole y\n  robot z",
		"bad_option":          "clusterrole x colour=red",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(text); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestEnsure(t *testing.T) {
	p, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	ctx, client := context.Background(), fake.NewClientset()
	if err := p.Ensure(ctx, client); err != nil {
		t.Fatal(err)
	}
	roles, _ := client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if len(roles.Items) != len(p.ClusterRoles) {
		t.Fatalf("%d cluster roles, want %d", len(roles.Items), len(p.ClusterRoles))
	}

	// An administrator takes rules from two roles and protects one of them.
	strip := func(name, autoupdate string) {
		r, err := client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r = r.DeepCopy()
		r.Rules = r.Rules[:1]
		r.Annotations[rbacv1.AutoUpdateAnnotationKey] = autoupdate
		if _, err := client.RbacV1().ClusterRoles().Update(ctx, r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	strip("system:kube-scheduler", "true")
	strip("system:node", "false")
	client.ClearActions()
	if err := p.Ensure(ctx, client); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"system:kube-scheduler": true, "system:node": false} {
		r, _ := client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if got, _ := validation.Covers(r.Rules, p.Rules(name)); got != want {
			t.Errorf("%s has its rules back: %t, want %t", name, got, want)
		}
	}

	// Nothing differs now: nothing is written.
	client.ClearActions()
	if err := p.Ensure(ctx, client); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() != "list" && a.GetVerb() != "get" {
			t.Errorf("a second run did %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}
