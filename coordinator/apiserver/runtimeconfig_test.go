package apiserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

func switched(overrides map[string]string) apitest.Options {
	return apitest.Options{Kinds: registry.Kinds(),
		Config: func(c *apiserver.Config) { c.RuntimeConfig = overrides }}
}

func TestRuntimeConfigRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		overrides map[string]string
		want      string
	}{
		"nothing left": {map[string]string{"api/all": "false"}, "with only api/all=false"},
		"no version":   {map[string]string{"v1": "true"}, `"v1": give group/version`},
		"too long":     {map[string]string{"a/b/c/d": "true"}, `"a/b/c/d": give group/version`},
		"group":        {map[string]string{"aps/v1": "false"}, `"aps/v1": unknown API group "aps"`},
		"version":      {map[string]string{"apps/v1beta1": "true"}, "apps/v1beta1 is not served here"},
		"resource":     {map[string]string{"apps/v1/Deployments": "false"}, `apps/v1 has no resource "Deployments"`},
		"value":        {map[string]string{"apps/v1": "maybe"}, `"apps/v1": "maybe": give true or false`},
		"class value":  {map[string]string{"api/beta": "1"}, `"api/beta": "1": give true or false`},
		"core":         {map[string]string{"/v1": "false"}, `"/v1": cannot be off`},
		"definitions":  {map[string]string{"apiextensions.k8s.io/v1": "false"}, "cannot be off"},
		"both": {map[string]string{"aps/v1": "false", "apps/v1": "maybe"},
			"runtimeConfig \"apps/v1\": \"maybe\": give true or false\nruntimeConfig \"aps/v1\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := apiserver.New(apiserver.Config{Kinds: registry.Kinds(), RuntimeConfig: tc.overrides})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v: %v, want %q", tc.overrides, err, tc.want)
			}
		})
	}
}

// What is off has no path, and is in no document; what is stored of it comes back
// with it.
func TestRuntimeConfig(t *testing.T) {
	dir := t.TempDir()
	all := apitest.Options{Kinds: registry.Kinds(), Dir: dir}
	s := apitest.Start(t, all)
	job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *"}}
	job.Spec.JobTemplate.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	if _, err := s.Kubernetes(t).BatchV1().CronJobs("default").Create(t.Context(), job,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Stop()

	o := switched(map[string]string{"api/all": "false", "apps/v1": "true", "batch/v1/jobs": "true",
		"autoscaling/v1": "true", "rbac.authorization.k8s.io/v1": "0"})
	o.Dir = dir
	s = apitest.Start(t, o)
	unregistered(t, s, "v1.rbac.authorization.k8s.io")
	for path, want := range map[string]int{
		"/api/v1/pods": http.StatusOK, "/apis/apps/v1/deployments": http.StatusOK, "/apis/batch/v1/jobs": http.StatusOK,
		"/apis/batch/v1/cronjobs": http.StatusNotFound, "/apis/batch": http.StatusOK,
		"/apis/autoscaling/v1": http.StatusOK, "/apis/autoscaling/v2": http.StatusNotFound,
		"/apis/rbac.authorization.k8s.io/v1/roles":                http.StatusNotFound,
		"/apis/rbac.authorization.k8s.io":                         http.StatusNotFound,
		"/apis/metrics.k8s.io/v1beta1":                            http.StatusNotFound,
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": http.StatusOK,
		"/apis/apiregistration.k8s.io/v1/apiservices":             http.StatusOK,
		"/openapi/v3/apis/batch/v1":                               http.StatusOK,
		"/openapi/v3/apis/policy/v1":                              http.StatusNotFound,
	} {
		if code, body := raw(t, s, path); code != want {
			t.Errorf("%s: %d %.200s, want %d", path, code, body, want)
		}
	}
	want := []string{"apiregistration.k8s.io", "apps", "autoscaling", "batch", "networking.k8s.io", "apiextensions.k8s.io"}
	groups, err := s.Kubernetes(t).Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range groups.Groups {
		if name := groups.Groups[i].Name; name != "" {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("groups %q, want %q", got, want)
	}
	_, list := raw(t, s, "/apis")
	if strings.Contains(list, "metrics.k8s.io") || strings.Contains(list, "autoscaling/v2") {
		t.Errorf("/apis tells of what is off: %s", list)
	}
	_, index := raw(t, s, "/openapi/v3")
	if strings.Contains(index, "autoscaling/v2") || !strings.Contains(index, "apis/autoscaling/v1?") {
		t.Errorf("index of OpenAPI v3: %s", index)
	}
	checkDocument(t, s, "/openapi/v3/apis/batch/v1")
	checkDocument(t, s, "/openapi/v2")
	if code, _ := raw(t, s, "/openapi/v2", "Accept",
		"application/com.github.proto-openapi.spec.v2.v1.0+protobuf"); code != http.StatusOK {
		t.Errorf("OpenAPI v2 in protobuf: %d", code)
	}
	s.Stop()

	s = apitest.Start(t, all)
	if _, err := s.Kubernetes(t).BatchV1().CronJobs("default").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// unregistered waits until an APIService of an earlier run is removed.
func unregistered(t *testing.T, s *apitest.Server, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		code, body := raw(t, s, "/apis/apiregistration.k8s.io/v1/apiservices/"+name)
		group, _ := raw(t, s, "/apis/"+strings.TrimPrefix(name, "v1."))
		if code == http.StatusNotFound && group == http.StatusNotFound {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s stays: %d %s", name, code, body)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// checkDocument looks whether a document tells of Jobs but not of CronJobs, and
// has all models that it refers to.
func checkDocument(t *testing.T, s *apitest.Server, path string) {
	t.Helper()
	code, doc := raw(t, s, path)
	var paths struct {
		Paths map[string]any
	}
	if err := json.Unmarshal([]byte(doc), &paths); err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %v", path, code, err)
	}
	const namespaced = "/apis/batch/v1/namespaces/{namespace}/"
	if paths.Paths[namespaced+"jobs/{name}/status"] == nil || paths.Paths[namespaced+"cronjobs"] != nil {
		t.Errorf("%s: wrong paths", path)
	}
	for model, want := range map[string]bool{"io.k8s.api.batch.v1.Job": true, "io.k8s.api.batch.v1.JobList": true,
		"io.k8s.api.core.v1.PodSpec": true, "io.k8s.api.batch.v1.CronJob": false} {
		if got := strings.Contains(doc, `"`+model+`":{`); got != want {
			t.Errorf("%s: has model %s: %t, want %t", path, model, got, want)
		}
	}
}
