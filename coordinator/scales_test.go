package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// TestScaleOfACustomKind reads it as an API server tells it.
func TestScaleOfACustomKind(t *testing.T) {
	answers := map[string]string{
		"/api":  `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}]}]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[
			{"name":"replicationcontrollers","namespaced":true,"kind":"ReplicationController","verbs":["get"]}]}`,
		"/apis/example.com/v1": `{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[
			{"name":"shoals","namespaced":true,"kind":"Shoal","verbs":["get"]},
			{"name":"shoals/scale","namespaced":true,"kind":"Scale","group":"autoscaling","version":"v1","verbs":["get"]},
			{"name":"stones","namespaced":true,"kind":"Stone","verbs":["get"]}]}`,
		"/api/v1/namespaces/ns/replicationcontrollers/a/scale": `{"kind":"Scale","apiVersion":"autoscaling/v1",
			"metadata":{"name":"a","namespace":"ns","uid":"1"},"spec":{"replicas":2}}`,
		"/apis/example.com/v1/namespaces/ns/shoals/b/scale": `{"kind":"Scale","apiVersion":"autoscaling/v1",
			"metadata":{"name":"b","namespace":"ns","uid":"2"},"spec":{"replicas":3}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if answers[r.URL.Path] == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		w.Write([]byte(answers[r.URL.Path]))
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newScales(client, &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		kind     schema.GroupVersionKind
		name     string
		uid      string
		replicas int32
		err      string // "gone" for an owner that is not there
	}{
		{schema.GroupVersionKind{Version: "v1", Kind: "ReplicationController"}, "a", "1", 2, ""},
		{schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shoal"}, "b", "2", 3, ""},
		{schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shoal"}, "c", "", 0, "gone"},
		{schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Stone"}, "a", "", 0,
			"stones.example.com does not implement the scale subresource"},
		{schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Fish"}, "a", "", 0,
			`no matches for kind "Fish" in version "example.com/v1"`},
	} {
		uid, replicas, err := s.Scale(t.Context(), tt.kind, "ns", tt.name)
		told := ""
		if apierrors.IsNotFound(err) {
			told = "gone"
		} else if err != nil {
			told = err.Error()
		}
		if string(uid) != tt.uid || replicas != tt.replicas || told != tt.err {
			t.Errorf("%s %s: %s, %d, %v", tt.kind.Kind, tt.name, uid, replicas, err)
		}
	}
}
