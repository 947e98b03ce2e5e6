package store

import (
	"context"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// TestReadWhileNothingIsWritten: etcd tells no watch of a stream how far it has come while
// one of them waits for the next revision. Nothing may be written before a read is
// answered, as where an admission policy refuses all before its parameters are read.
func TestReadWhileNothingIsWritten(t *testing.T) {
	s, _ := openSmall(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiting := custom(t, s, "waiting")
	r, err := s.client.KV.Put(ctx, "/others/key", "")
	if err != nil {
		t.Fatal(err)
	}
	custom(t, s, "new") // its watch begins after the revision
	initial := true
	w, err := waiting.Watch(ctx, "/example.com/waiting", storage.ListOptions{
		ResourceVersion:      strconv.FormatInt(r.Header.Revision, 10),
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		SendInitialEvents:    &initial, Recursive: true,
		Predicate: storage.SelectionPredicate{
			Label: labels.Everything(), Field: fields.Everything(), AllowWatchBookmarks: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		m, ok := e.Object.(*unstructured.Unstructured)
		if !ok || m.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
			t.Errorf("the watch begins with %+v", e)
		}
	case <-ctx.Done():
		t.Error("the watch does not begin")
	}
}

// custom is the storage of a custom kind whose watch cache is full.
func custom(t *testing.T, s *Store, resource string) storage.Interface {
	t.Helper()
	gr := schema.GroupResource{Group: "example.com", Resource: resource}
	o, err := s.CustomOptions().GetRESTOptions(gr, nil)
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionKind{Group: gr.Group, Version: "v1", Kind: "Thing"}
	list := kind
	list.Kind += "List"
	out, destroy, err := o.Decorator(o.StorageConfig, "/"+o.ResourcePrefix,
		func(obj runtime.Object) (string, error) { return storage.NoNamespaceKeyFunc("/"+o.ResourcePrefix, obj) },
		func() runtime.Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(kind)
			return u
		},
		func() runtime.Object {
			u := &unstructured.UnstructuredList{}
			u.SetGroupVersionKind(list)
			return u
		}, storage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	soon(t, "its cache is full", func() bool { return out.ReadinessCheck() == nil })
	return out
}
