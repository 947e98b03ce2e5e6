package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// TestSurface: what a coordinator shows beside the kinds of its API.
func TestSurface(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	s := surface{client(t, p, dir, port)}
	t.Run("health", s.testHealth)
	t.Run("pages", s.testPages)
	t.Run("groups", s.testGroups)
	t.Run("components", s.testComponents)
	t.Run("objects", s.testObjects)
	t.Run("event", s.testEvent)
	terminate(t, p)
}

// A coordinator comes to be ready, and works, without most of its API.
func TestRuntimeConfig(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port, "--runtime-config",
		"api/all=false,apps/v1,authorization.k8s.io/v1,coordination.k8s.io/v1=true")
	s := surface{client(t, p, dir, port)}
	soon(t, "it is ready without the other APIs", func() error {
		if code, body := s.get(t, "/readyz"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	for path, want := range map[string]int{"/apis/apps/v1/deployments": http.StatusOK,
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": http.StatusNotFound, "/apis/batch/v1": http.StatusNotFound} {
		if code, body := s.get(t, path); code != want {
			t.Errorf("%s: %d %.200s, want %d", path, code, body, want)
		}
	}
	if _, err := s.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	terminate(t, p)
}

type surface struct{ kubernetes.Interface }

// get returns the answer to a path, in plain text where there is such.
func (s surface) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	r := s.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "text/plain, application/json")
	for _, parameter := range strings.FieldsFunc(query, func(c rune) bool { return c == '&' }) {
		name, value, _ := strings.Cut(parameter, "=")
		r.Param(name, value)
	}
	answer := r.Do(t.Context())
	answer.StatusCode(&code)
	raw, err := answer.Raw()
	if err != nil && len(raw) == 0 {
		return code, err.Error()
	}
	return code, string(raw)
}

// Health checks have upstream's names: its specs and people's probes know them.
func (s surface) testHealth(t *testing.T) {
	everywhere := []string{"ping", "log", "etcd", "autoregister-completion"}
	for _, step := range []string{
		"start-apiserver-admission-initializer", "generic-apiserver-start-informers",
		"priority-and-fairness-config-consumer", "priority-and-fairness-filter", "storage-object-count-tracker-hook",
		"start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced",
		"start-system-namespaces-controller", "start-cluster-authentication-info-controller",
		"start-kube-apiserver-identity-lease-controller", "start-kube-apiserver-identity-lease-garbage-collector",
		"priority-and-fairness-config-producer", "start-legacy-token-tracking-controller",
		"start-service-ip-repair-controllers", "rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes",
		"bootstrap-controller", "start-kubernetes-service-cidr-controller", "storage-readiness",
		"aggregator-reload-proxy-client-cert", "start-kube-aggregator-informers",
		"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"apiservice-registration-controller", "apiservice-discovery-controller", "kube-apiserver-autoregistration",
		"apiservice-openapi-controller", "apiservice-openapiv3-controller",
	} {
		everywhere = append(everywhere, "poststarthook/"+step)
	}
	for path, more := range map[string][]string{
		"/healthz": nil, "/livez": nil, "/readyz": {"informer-sync", "etcd-readiness", "shutdown"},
	} {
		code, body := s.get(t, path+"?verbose=1")
		lines := strings.Split(body, "\n")
		for _, name := range append(slices.Clone(everywhere), more...) {
			if code != http.StatusOK || !slices.Contains(lines, "[+]"+name+" ok") {
				t.Errorf("%s: no check %q, %d", path, name, code)
			}
			if code, body := s.get(t, path+"/"+name); code != http.StatusOK || body != "ok" {
				t.Errorf("%s/%s: %d %q", path, name, code, body)
			}
		}
		if code, body := s.get(t, path+"?verbose=1&exclude=etcd"); code != http.StatusOK ||
			!strings.Contains(body, "[+]etcd excluded: ok\n") {
			t.Errorf("%s without etcd: %d %s", path, code, body)
		}
		if code, _ := s.get(t, path+"/none"); code != http.StatusNotFound {
			t.Errorf("%s/none: %d", path, code)
		}
	}
}

func (s surface) testPages(t *testing.T) {
	for path, want := range map[string]string{
		"/flagz":    "\ncluster-domain",
		"/statusz":  "Emulation version",
		"/metrics":  "apiserver_request_total",
		"/nowhere":  "404 page not found",
		"/apis/a.b": "404 page not found",
	} {
		code, body := s.get(t, path)
		if wantCode := http.StatusOK; !strings.Contains(body, want) ||
			(code == wantCode) == strings.HasPrefix(want, "404") {
			t.Errorf("%s: %d %.2000s", path, code, body)
		}
	}
}

// Clients take the first group that has a resource of a name. That of the custom resource
// that comes with the API is there some seconds after the first start.
func (s surface) testGroups(t *testing.T) {
	var got []string
	for range 300 {
		list, err := s.Discovery().ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for i := range list.Groups {
			if name := list.Groups[i].Name; name != "" {
				got = append(got, name)
			}
		}
		if slices.Contains(got, networkpolicy.GroupName) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	want := []string{"apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
		"autoscaling", "batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io",
		"storage.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io",
		"coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io",
		networkpolicy.GroupName, "metrics.k8s.io"}
	if !slices.Equal(got, want) {
		t.Errorf("groups\n%q, want\n%q", got, want)
	}
	for name, want := range map[string]string{
		"v1.": "18000/1", "v2.autoscaling": "17500/30", "v1.autoscaling": "17500/15",
		"v1.resource.k8s.io": "16200/21", "v1.flowcontrol.apiserver.k8s.io": "16100/21"} {
		var spec struct {
			Spec struct{ GroupPriorityMinimum, VersionPriority int }
		}
		raw, err := s.Discovery().RESTClient().Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/"+name).
			SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		decode(t, raw, &spec)
		if got := fmt.Sprintf("%d/%d", spec.Spec.GroupPriorityMinimum, spec.Spec.VersionPriority); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func (s surface) testComponents(t *testing.T) {
	components := s.CoreV1().ComponentStatuses()
	soon(t, "all components are well", func() error {
		list, err := components.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for i := range list.Items {
			c := list.Items[i].Conditions[0]
			got = append(got, fmt.Sprintf("%s %s=%s %s%s", list.Items[i].Name, c.Type, c.Status, c.Message, c.Error))
		}
		if want := []string{"controller-manager Healthy=True ok", "etcd-0 Healthy=True ok",
			"scheduler Healthy=True ok"}; !slices.Equal(got, want) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	one, err := components.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=scheduler"})
	if err != nil || len(one.Items) != 1 || one.Items[0].Name != "scheduler" {
		t.Errorf("by name: %v, %v", one, err)
	}
	none, err := components.List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
	if err != nil || len(none.Items) != 0 {
		t.Errorf("by label: %v, %v", none, err)
	}
	_, err = components.Get(t.Context(), "etcd-1", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) || err.Error() != `componentstatus "etcd-1" not found` {
		t.Errorf("unknown: %v", err)
	}
	raw, err := s.Discovery().RESTClient().Get().AbsPath("/api/v1/componentstatuses/scheduler").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	decode(t, raw, &table)
	if got := fmt.Sprint(table.ColumnDefinitions[1].Name, table.Rows[0].Cells); got != "Status[scheduler Healthy ok ]" {
		t.Errorf("table: %s", got)
	}
}

func (s surface) testObjects(t *testing.T) {
	tracking, err := s.CoreV1().ConfigMaps("kube-system").Get(t.Context(),
		"kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if since, err := time.Parse(time.DateOnly, tracking.Data["since"]); err != nil || time.Since(since) > 48*time.Hour {
		t.Errorf("since %q, %v", tracking.Data["since"], err)
	}
	soon(t, "the server shows its identity", func() error {
		leases, err := s.CoordinationV1().Leases("kube-system").List(t.Context(),
			metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil || len(leases.Items) != 1 {
			return fmt.Errorf("%v, %w", leases, err)
		}
		l := &leases.Items[0]
		if holder := ptr.Deref(l.Spec.HolderIdentity, ""); !strings.HasPrefix(l.Name, "apiserver-") ||
			!strings.HasPrefix(holder, l.Name+"_") || ptr.Deref(l.Spec.LeaseDurationSeconds, 0) != 3600 ||
			l.Labels[corev1.LabelHostname] == "" {
			t.Errorf("Lease %+v", l)
		}
		return nil
	})
}

// An event has no dependents: it goes at once however it is deleted.
func (s surface) testEvent(t *testing.T) {
	events := s.CoreV1().Events("default")
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationOrphan,
		metav1.DeletePropagationForeground} {
		name := strings.ToLower(string(policy))
		if _, err := events.Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name},
			InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := events.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		if left, err := events.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, %v", policy, left.Finalizers, err)
		}
	}
}

func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
}
