package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
)

// at is a resolver of Services' names to addresses.
type at map[string]string

func (a at) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	if a[name] == "" {
		return nil, errors.New("no endpoints")
	}
	return url.Parse(a[name])
}

func remoteService(name string, available apiregistrationv1.ConditionStatus) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: apiregistrationv1.APIServiceSpec{Group: name, Version: "v1", InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: name}},
		Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{
			{Type: apiregistrationv1.Available, Status: available}}},
	}
}

// An aggregated server's documents are those of its own group version; it is asked
// once in a while, as long as it is available, and for whom is told.
func TestRemoteOpenAPI(t *testing.T) {
	var indexes atomic.Int32
	fish := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/openapi/v3":
			indexes.Add(1)
			fmt.Fprint(w, `{"paths":{"apis/fish.io/v1":{"serverRelativeURL":"/openapi/v3/apis/fish.io/v1?hash=A"},`+
				`"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=B"}}}`)
		case "/openapi/v3/apis/fish.io/v1":
			fmt.Fprintf(w, "for %s of %v, hash %s, authorization %q, forged %q", r.Header.Get("X-Remote-User"),
				r.Header["X-Remote-Group"], r.URL.Query().Get("hash"), r.Header.Get("Authorization"),
				r.Header.Get("X-Remote-Extra-Forged"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer fish.Close()
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"paths":`)
	}))
	defer broken.Close()

	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	local := remoteService("local.io", apiregistrationv1.ConditionTrue)
	local.Spec.Service = nil
	for _, s := range []*apiregistrationv1.APIService{
		remoteService("fish.io", apiregistrationv1.ConditionTrue),
		remoteService("broken.io", apiregistrationv1.ConditionTrue),
		remoteService("away.io", apiregistrationv1.ConditionTrue),
		remoteService("down.io", apiregistrationv1.ConditionFalse), local,
	} {
		if err := store.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	o := &remoteOpenAPI{services: listers.NewAPIServiceLister(store), log: slog.New(slog.DiscardHandler),
		limit: time.Minute, resolve: at{"fish.io": fish.URL, "broken.io": broken.URL, "down.io": fish.URL}}

	for range 2 {
		urls, err := o.list(t.Context())
		want := "/openapi/v3/apis/fish.io/v1?hash=A"
		if err != nil || len(urls) != 1 || urls["apis/fish.io/v1"] != want {
			t.Fatalf("%v, %v", urls, err)
		}
	}
	if n := indexes.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}

	get := func(path string, with ...string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "/openapi/v3/"+path+"?hash=A", nil)
		for _, header := range with {
			r.Header.Set(header, "forged")
		}
		r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "anna", Groups: []string{"dev"}}))
		service := o.of(path)
		if service == nil {
			return http.StatusNotFound, ""
		}
		w := httptest.NewRecorder()
		o.serve(w, r, service)
		return w.Code, w.Body.String()
	}
	code, body := get("apis/fish.io/v1", "Authorization", "X-Remote-User", "X-Remote-Extra-Forged")
	if want := `for anna of [dev], hash A, authorization "", forged ""`; code != http.StatusOK || body != want {
		t.Errorf("%d %s, want %s", code, body, want)
	}
	for path, want := range map[string]int{"apis/down.io/v1": 404, "apis/away.io/v1": 503, "apis/local.io/v1": 404,
		"apis/fish.io/v2": 404} {
		if code, body := get(path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}

	changed := remoteService("fish.io", apiregistrationv1.ConditionTrue)
	changed.ResourceVersion = "2" // may be another server
	if err := store.Update(changed); err != nil {
		t.Fatal(err)
	}
	if urls, err := o.list(t.Context()); err != nil || len(urls) != 1 || indexes.Load() != 2 {
		t.Errorf("%v, %v, asked %d times", urls, err, indexes.Load())
	}
	if err := store.Delete(changed); err != nil {
		t.Fatal(err)
	}
	if urls, err := o.list(t.Context()); err != nil || len(urls) != 0 {
		t.Errorf("%v, %v", urls, err)
	}
}

func TestReadRemoteIndex(t *testing.T) {
	for text, want := range map[string]string{
		`{"paths":{"apis/a/v1":{"serverRelativeURL":"/openapi/v3/apis/a/v1?hash=X%26"}}}`:   "/openapi/v3/apis/a/v1?hash=X%26",
		`{"paths":{"apis/a/v1":{"serverRelativeURL":"/openapi/v3/apis/b/v1?hash=X"}}}`:      "is no document of it",
		`{"paths":{"apis/a/v1":{"serverRelativeURL":"https://evil/openapi/v3/apis/a/v1"}}}`: "is no document of it",
		`{"paths":{"apis/a/v1":{"serverRelativeURL":"//evil/openapi/v3/apis/a/v1"}}}`:       "is no document of it",
		`{"paths":{"apis/a/v1":{"serverRelativeURL":":"}}}`:                                 "missing protocol scheme",
		`{"paths":{}}`: "is not in the index",
		`[]`:           "cannot unmarshal",
	} {
		url, err := readRemoteIndex([]byte(text), "apis/a/v1")
		if err != nil {
			url = err.Error()
		}
		if !strings.Contains(url, want) {
			t.Errorf("%s: %s, want %s", text, url, want)
		}
	}
}

func FuzzReadRemoteIndex(f *testing.F) {
	f.Add([]byte(`{"paths":{"apis/a/v1":{"serverRelativeURL":"/openapi/v3/apis/a/v1?hash=X"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		url, err := readRemoteIndex(data, "apis/a/v1")
		if err == nil && !strings.HasPrefix(url, "/openapi/v3/apis/a/v1?hash=") {
			t.Errorf("%q", url)
		}
	})
}
