package admission

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
)

// A policy may have parameters of a custom kind that is defined after another policy's.
func TestMapperLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		serve := func(kind, resource string) {
			client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: resource + ".example.com/v1",
				APIResources: []metav1.APIResource{{Name: resource, Kind: kind}}})
		}
		m := newMapper(client.Discovery())
		find := func(kind, resource string) error {
			found, err := m.RESTMapping(schema.GroupKind{Group: resource + ".example.com", Kind: kind}, "v1")
			if err == nil && found.Resource.Resource != resource {
				t.Errorf("%s is of resource %s", kind, found.Resource)
			}
			return err
		}
		serve("First", "firsts")
		if err := find("First", "firsts"); err != nil {
			t.Fatal(err)
		}
		if find("Second", "seconds") == nil {
			t.Fatal("a kind is found that is not defined")
		}
		serve("Second", "seconds")
		asked := len(client.Actions())
		if find("Second", "seconds") == nil || len(client.Actions()) != asked {
			t.Error("discovery is asked at each question")
		}
		time.Sleep(relearn)
		if err := find("Second", "seconds"); err != nil {
			t.Errorf("a kind that was defined later: %v", err)
		}
	})
}
