package apiserver_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/apiserver/openapi"
	"github.com/shoal-project/shoal/coordinator/registry"
)

func start(t *testing.T) (*apitest.Server, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	s.Informers().Start(ctx.Done())
	if err := apiserver.EnsureSystem(ctx, s.Client(),
		apiserver.System{Port: 6443, ServiceIP: []byte{10, 96, 0, 1},
			ServiceCIDRs: []string{"10.96.0.0/16"}}); err != nil {
		t.Fatal(err)
	}
	return s, ctx
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Data: map[string]string{"k": value}}
}

// raw asks over TLS and returns the answer's body.
func raw(t *testing.T, s *apitest.Server, path string, header ...string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// The kinds that clients can do the usual with: write, read, patch, list in
// pages, watch, delete.
func TestObjects(t *testing.T) {
	s, ctx := start(t)
	client := s.Kubernetes(t)
	cms := client.CoreV1().ConfigMaps("default")
	watcher, err := cms.Watch(ctx, metav1.ListOptions{LabelSelector: "app=x"})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	cm := configMap("a", "v")
	cm.Labels = map[string]string{"app": "x"}
	if cm, err = cms.Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-watcher.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Data["k"] != "v" {
		t.Errorf("watch told %v of %v", e.Type, e.Object)
	}

	t.Run("update with an old version conflicts", func(t *testing.T) {
		stale := cm.DeepCopy()
		cm.Data["k"] = "w"
		if cm, err = cms.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := cms.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("stale update: %v", err)
		}
	})
	t.Run("patches", func(t *testing.T) {
		for _, p := range []struct {
			kind types.PatchType
			body string
		}{
			{types.JSONPatchType, `[{"op":"add","path":"/data/json","value":"1"}]`},
			{types.MergePatchType, `{"data":{"merge":"1"}}`},
			{types.StrategicMergePatchType, `{"data":{"strategic":"1"}}`},
		} {
			if _, err := cms.Patch(ctx, "a", p.kind, []byte(p.body), metav1.PatchOptions{}); err != nil {
				t.Errorf("%s: %v", p.kind, err)
			}
		}
		got, err := cms.Get(ctx, "a", metav1.GetOptions{})
		if err != nil || len(got.Data) != 4 {
			t.Errorf("after patches: %v, %v", got.Data, err)
		}
	})
	t.Run("dry run changes nothing", func(t *testing.T) {
		if _, err := cms.Create(ctx, configMap("dry", "v"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
		if _, err := cms.Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("after dry run: %v", err)
		}
	})
	t.Run("pages", func(t *testing.T) {
		for _, name := range []string{"p1", "p2", "p3"} {
			if _, err := cms.Create(ctx, configMap(name, "v"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		var names []string
		for o := (metav1.ListOptions{Limit: 2}); ; {
			list, err := cms.List(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range list.Items {
				names = append(names, i.Name)
			}
			if o.Continue = list.Continue; o.Continue == "" {
				break
			}
		}
		if got := strings.Join(names, " "); got != "a p1 p2 p3" {
			t.Errorf("pages hold %q", got)
		}
	})
	t.Run("unknown fields", func(t *testing.T) {
		err := client.CoreV1().RESTClient().Post().Namespace("default").Resource("configmaps").Param("fieldValidation",
			"Strict").
			Body([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"s"},"dat":{}}`)).
			SetHeader("Content-Type", "application/json").Do(ctx).Error()
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "dat"`) {
			t.Errorf("strict: %v", err)
		}
	})
	t.Run("delete collection", func(t *testing.T) {
		if err := cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if list, err := cms.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("left: %v, %v", list.Items, err)
		}
	})
}

func TestServerSideApply(t *testing.T) {
	s, ctx := start(t)
	client := s.Kubernetes(t)
	cms := client.CoreV1().ConfigMaps("default")
	apply := func(manager, value string, force bool) error {
		_, err := cms.Apply(ctx, corev1apply.ConfigMap("a", "default").WithData(map[string]string{"k": value}),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
		return err
	}
	if err := apply("one", "v", false); err != nil {
		t.Fatal(err)
	}
	if err := apply("two", "w", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one": .data.k`) {
		t.Errorf("second manager: %v", err)
	}
	if err := apply("two", "w", true); err != nil {
		t.Errorf("forced: %v", err)
	}

	// Lists of objects merge by their keys, which only the models tell.
	deployments := client.AppsV1().Deployments("default")
	for manager, port := range map[string]string{"one": `{"containerPort":80,"name":"a"}`, "two": `{"containerPort":81,"name":"b"}`} {
		body := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","ports":[` +
			port + `]}]}}}}`
		if _, err := deployments.Patch(ctx, "d", types.ApplyPatchType, []byte(body),
			metav1.PatchOptions{FieldManager: manager}); err != nil {
			t.Fatal(err)
		}
	}
	d, err := deployments.Get(ctx, "d", metav1.GetOptions{})
	if err != nil || len(d.Spec.Template.Spec.Containers) != 1 || len(d.Spec.Template.Spec.Containers[0].Ports) != 2 {
		t.Errorf("merged: %+v, %v", d.Spec.Template.Spec.Containers, err)
	}
}

// Generation counts changes of the spec; the status has a resource of its own.
func TestGenerationAndStatus(t *testing.T) {
	s, ctx := start(t)
	deployments := s.Kubernetes(t).AppsV1().Deployments("default")
	labels := map[string]string{"a": "b"}
	d, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}},
		Status: appsv1.DeploymentStatus{Replicas: 7},
	}, metav1.CreateOptions{})
	if err != nil || d.Generation != 1 || d.Status.Replicas != 0 {
		t.Fatalf("created: generation %d, status %+v, %v", d.Generation, d.Status, err)
	}
	d.Status.ObservedGeneration = 1
	d.Spec.Paused = true
	if d, err = deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{}); err != nil || d.Spec.Paused ||
		d.Status.ObservedGeneration != 1 || d.Generation != 1 {
		t.Fatalf("status written: %+v, %v", d, err)
	}
	d.Spec.Paused = true
	d.Status.ObservedGeneration = 9
	if d, err = deployments.Update(ctx, d, metav1.UpdateOptions{}); err != nil || !d.Spec.Paused ||
		d.Status.ObservedGeneration != 1 || d.Generation != 2 {
		t.Fatalf("spec written: %+v, %v", d, err)
	}
}

func TestTable(t *testing.T) {
	s, ctx := start(t)
	if _, err := s.Client().CoreV1().ConfigMaps("default").Create(ctx, configMap("a", "v"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, body := raw(t, s, "/api/v1/namespaces/default/configmaps", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	if got := strings.Join(columns, " "); got != "Name Data Age" || len(table.Rows) != 1 || table.Rows[0].Cells[0] != "a" {
		t.Errorf("table of %q: %v", got, table.Rows)
	}
}

// One event, two APIs.
func TestEventsInBothGroups(t *testing.T) {
	s, ctx := start(t)
	client := s.Kubernetes(t)
	now := metav1.NowMicro()
	_, err := client.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, EventTime: now,
		ReportingController: "test/c", ReportingInstance: "i",
		Action: "Do", Reason: "Because", Type: "Normal", Note: "text",
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=p"})
	if err != nil || len(old.Items) != 1 || old.Items[0].Message != "text" {
		t.Errorf("in core: %+v, %v", old, err)
	}
	list, err := client.EventsV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=p"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Note != "text" {
		t.Errorf("in events.k8s.io: %+v, %v", list, err)
	}
}

const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{
"group":"example.com","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,
"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer","minimum":1,"default":3,"description":"how big"}}}}}}}]}}`

func TestCustomResources(t *testing.T) {
	s, ctx := start(t)
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON([]byte(crd)); err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widgets := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).
		Namespace("default")
	widget := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "w"}, "spec": map[string]any{}}}
	eventually(t, "the custom resource is served", func() error {
		_, err := widgets.Create(ctx, widget, metav1.CreateOptions{})
		return err
	})
	got, err := widgets.Get(ctx, "w", metav1.GetOptions{})
	if size, _, _ := unstructured.NestedInt64(got.Object, "spec", "size"); err != nil || size != 3 {
		t.Errorf("defaulted to %d, %v", size, err)
	}
	gr := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	if n, size, known, err := s.Storage.Count(ctx, gr); n != 1 || size < 100 || !known || err != nil {
		t.Errorf("%d widgets of %d bytes are counted, %v, %v", n, size, known, err)
	}
	if _, err := widgets.Patch(ctx, "w", types.MergePatchType, []byte(`{"spec":{"size":0}}`),
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("invalid size: %v", err)
	}
	eventually(t, "its schema is described", func() error {
		code, body := raw(t, s, "/openapi/v3/apis/example.com/v1")
		if code != http.StatusOK || !strings.Contains(body, "how big") {
			return apierrors.NewInternalError(io.ErrUnexpectedEOF)
		}
		return nil
	})
	if _, body := raw(t, s, "/openapi/v2"); !strings.Contains(body, "com.example.v1.Widget") ||
		strings.Contains(body, `.ObjectMeta_v2"`) {
		t.Error("not in OpenAPI v2, or with models of its own")
	}
	services := client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	eventually(t, "it has an APIService", func() error {
		_, err := services.Get(ctx, "v1.example.com", metav1.GetOptions{})
		return err
	})
	if _, err := services.Get(ctx, "v1.apps", metav1.GetOptions{}); err != nil {
		t.Errorf("APIService of apps: %v", err)
	}
}

// The informers in process hold the objects that clients wrote, typed.
func TestInformersInProcess(t *testing.T) {
	s, ctx := start(t)
	informer := s.Informers().Core().V1().ConfigMaps()
	lister := informer.Lister()
	s.Informers().Start(ctx.Done())
	s.Informers().WaitForCacheSync(ctx.Done())
	cms := s.Kubernetes(t).CoreV1().ConfigMaps("default")
	if _, err := cms.Create(ctx, configMap("a", "v"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the informer has it", func() error {
		_, err := lister.ConfigMaps("default").Get("a")
		return err
	})
	if err := cms.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the informer has lost it", func() error {
		if _, err := lister.ConfigMaps("default").Get("a"); !apierrors.IsNotFound(err) {
			return apierrors.NewConflict(schema.GroupResource{}, "a", nil)
		}
		return nil
	})
}

// Data outlives the server.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds(), Dir: dir})
	s.Informers().Start(ctx.Done())
	if _, err := s.Client().CoreV1().ConfigMaps("default").Create(ctx, configMap("a", "v"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s = apitest.Start(t, apitest.Options{Kinds: registry.Kinds(), Dir: dir})
	if cm, err := s.Kubernetes(t).CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{}); err != nil ||
		cm.Data["k"] != "v" {
		t.Errorf("after restart: %v, %v", cm, err)
	}
}

// Each served kind is in the documents that hack/update-openapi.sh rendered.
func TestDocumentsAreCurrent(t *testing.T) {
	models, err := openapi.LoadModels()
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, m := range models {
		list, _ := m.Extensions["x-kubernetes-group-version-kind"].([]any)
		for _, e := range list {
			gvk := e.(map[string]any)
			described[gvk["group"].(string)+"/"+gvk["version"].(string)+"/"+gvk["kind"].(string)] = true
		}
	}
	s, _ := start(t)
	for _, k := range registry.Kinds() {
		names := k.KindNames()
		kinds, _, err := s.Env().Scheme.ObjectKinds(k.NewObject())
		if err != nil {
			t.Fatal(err)
		}
		if gv := names.GroupVersion; !described[gv.Group+"/"+gv.Version+"/"+kinds[0].Kind] {
			t.Errorf("%s %s has no model: run hack/update-openapi.sh", gv, kinds[0].Kind)
		}
		path := "api/v1"
		if names.GroupVersion.Group != "" {
			path = "apis/" + names.GroupVersion.String()
		}
		if openapi.V3()[path] == "" {
			t.Errorf("%s has no document: run hack/update-openapi.sh", path)
		}
	}
	if _, body := raw(t, s, "/openapi/v3"); !strings.Contains(body, "/openapi/v3/apis/apps/v1?hash=") {
		t.Errorf("index: %s", body)
	}
	if _, body := raw(t, s, "/openapi/v3/api/v1"); !strings.Contains(body, "io.k8s.api.core.v1.Pod") {
		t.Error("core/v1 does not describe Pod")
	}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// Pods of kube-system name these classes; admission refuses a pod whose class
// does not exist.
func TestSystemClasses(t *testing.T) {
	s, ctx := start(t)
	for name, value := range map[string]int32{"system-node-critical": 2_000_001_000,
		"system-cluster-critical": 2_000_000_000} {
		class, err := s.Client().SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if class.Value != value || class.GlobalDefault {
			t.Errorf("%s: value %d, default %v", name, class.Value, class.GlobalDefault)
		}
	}
}

// Profiles are served when that is turned on.
func TestProfiling(t *testing.T) {
	const path = "/debug/pprof/symbol"
	off := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	if code, _ := raw(t, off, path); code != http.StatusNotFound {
		t.Errorf("off: %d", code)
	}
	on := apitest.Start(t, apitest.Options{Kinds: registry.Kinds(),
		Config: func(c *apiserver.Config) { c.Profiling = true }})
	if code, body := raw(t, on, path); code != http.StatusOK || body == "" {
		t.Errorf("on: %d %q", code, body)
	}
}
