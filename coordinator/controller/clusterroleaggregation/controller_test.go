package clusterroleaggregation

import (
	"log/slog"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/controller"
)

func role(name, label string, aggregate string, resources ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if label != "" {
		r.Labels[label] = "true"
	}
	if aggregate != "" {
		r.AggregationRule = &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{aggregate: "true"}}}}
	}
	for _, resource := range resources {
		r.Rules = append(r.Rules,
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}})
	}
	return r
}

func TestAggregate(t *testing.T) {
	target := role("edit", "to-edit", "to-edit", "own")
	rules, err := Aggregate(target, []*rbacv1.ClusterRole{
		role("z", "to-edit", "", "pods", "secrets"), role("a", "to-edit", "", "pods"),
		role("other", "to-view", "", "nodes"), target,
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rules {
		got = append(got, r.Resources[0])
	}
	if len(got) != 2 || got[0] != "pods" || got[1] != "secrets" {
		t.Errorf("got %v, want pods of a and secrets of z, once each and nothing of the role itself", got)
	}
}

// A change two roles away arrives: view is part of edit.
func TestControllerFollowsChanges(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset(role("view", "to-edit", "to-view"), role("edit", "", "to-edit"))
	factory := informers.NewSharedInformerFactory(client, 0)
	loop, err := New(controller.Env{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, role("part", "to-view", "", "pods"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		edit, err := client.RbacV1().ClusterRoles().Get(ctx, "edit", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(edit.Rules) == 1 && edit.Rules[0].Resources[0] == "pods" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("edit has %v", edit.Rules)
		}
	}
}
