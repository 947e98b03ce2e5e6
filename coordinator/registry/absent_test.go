package registry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// Nobody takes the server down by asking for what is not there: every resource
// and subresource answers every write of a missing object with a client's error,
// or makes it where an update may.
func TestWritesOfNothing(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	config := rest.CopyConfig(s.Config)
	config.QPS = -1
	client := s.Kubernetes(t)
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	serviceRange(t, client)
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, list := range lists {
		for i := range list.APIResources {
			asked += writeNothing(t, transport, config.Host, list.GroupVersion, &list.APIResources[i])
		}
	}
	if asked < 500 {
		t.Errorf("asked %d times only", asked)
	}
}

// serviceRange makes the range that cluster IPs are from.
func serviceRange(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	ranges := client.NetworkingV1().ServiceCIDRs()
	made, err := ranges.Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady,
		Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if _, err := ranges.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// writeNothing does each verb of a resource that a write has, on a missing object,
// and returns how many requests that took.
func writeNothing(t *testing.T, client *http.Client, host, groupVersion string, r *metav1.APIResource) int {
	t.Helper()
	resource, part, _ := strings.Cut(r.Name, "/")
	url := host + "/apis/" + groupVersion
	if !strings.Contains(groupVersion, "/") {
		url = host + "/api/" + groupVersion
	}
	if r.Namespaced {
		url += "/namespaces/missing"
	}
	url += "/" + resource
	objectVersion := groupVersion
	if r.Version != "" {
		objectVersion = strings.TrimPrefix(r.Group+"/"+r.Version, "/")
	}
	// A resource may make what it is asked for; a subresource looks for another.
	name := "made"
	if part != "" {
		name = "nothing"
	}
	object := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, objectVersion, r.Kind, name)
	if r.Kind == "Binding" {
		object = strings.TrimSuffix(object, "}") + `,"target":{"name":"somewhere"}}`
	}
	asked := 0
	ask := func(method, contentType, body, query string) {
		asked++
		at := url + "/" + name
		if part != "" {
			at += "/" + part
		} else if method == http.MethodPost {
			at = url
		}
		request, err := http.NewRequestWithContext(t.Context(), method, at+query, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", contentType)
		answer, err := client.Do(request)
		if err != nil {
			t.Errorf("%s %s %s: %v", method, at+query, contentType, err)
			return
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || !json.Valid(text) {
			t.Errorf("%s %s: %v: %s", method, at+query, err, text)
		}
		fails := answer.StatusCode >= http.StatusInternalServerError
		made := part != "" && answer.StatusCode < http.StatusBadRequest
		if fails || made {
			t.Errorf("%s %s %s: %d %s", method, at+query, contentType, answer.StatusCode, text)
		}
	}
	for _, query := range []string{"?dryRun=All", ""} {
		for _, verb := range r.Verbs {
			switch verb {
			case "update":
				ask(http.MethodPut, "application/json", object, query)
			case "patch":
				for _, kind := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType} {
					ask(http.MethodPatch, string(kind), `{"metadata":{"labels":{"a":"b"}}}`, query)
				}
				ask(http.MethodPatch, string(types.JSONPatchType), `[{"op":"remove","path":"/metadata/labels"}]`, query)
				apply := "?fieldManager=test"
				if query != "" {
					apply = query + "&fieldManager=test"
				}
				ask(http.MethodPatch, string(types.ApplyPatchType), object, apply)
			case "delete":
				ask(http.MethodDelete, "application/json", "", query)
			case "create":
				ask(http.MethodPost, "application/json", object, query)
			}
		}
	}
	return asked
}
