package apiserver_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

var v1 = corev1.SchemeGroupVersion

func someKinds() []kind.Kind {
	return []kind.Kind{
		kind.Of[corev1.ConfigMap]{Names: kind.Names{GroupVersion: v1, Resource: "configmaps", Singular: "configmap", ShortNames: []string{"cm"}, List: &corev1.ConfigMapList{}}}.Kind(),
		kind.Of[corev1.Namespace]{Names: kind.Names{GroupVersion: v1, Resource: "namespaces", Singular: "namespace", ShortNames: []string{"ns"}, ClusterScoped: true, List: &corev1.NamespaceList{}}}.Kind(),
	}
}

func TestCRUD(t *testing.T) {
	begin := time.Now()
	s := apitest.Start(t, apitest.Options{Kinds: someKinds()})
	t.Logf("ready after %s", time.Since(begin))
	ctx := context.Background()
	cms := s.Kubernetes(t).CoreV1().ConfigMaps("default")
	cm, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data["k"] = "w"
	if _, err := cms.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
