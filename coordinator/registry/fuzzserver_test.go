package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	shoaladmission "github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// asker asks one server in this process.
type asker struct {
	client *http.Client
	host   string
	kinds  []*askedKind
	made   int // definitions
}

// askedKind is a kind that is served.
type askedKind struct {
	metav1.APIResource
	gv     schema.GroupVersion
	typ    reflect.Type // nil: it is in no Go type
	seeds  []map[string]any
	bodies map[string]metav1.GroupVersionKind                   // by subresource
	make   func(c *choices, seed map[string]any) map[string]any // another of a seed's name; nil: none
}

// noRules tells of no user's rights.
type noRules struct{}

func (noRules) RulesFor(context.Context, user.Info, string) ([]rbacv1.PolicyRule, error) {
	return nil, nil
}

// neverAsked lead to nodes and Services.
var neverAsked = []string{"exec", "attach", "portforward", "proxy", "log"}

// seedsFile has a valid object of every kind at least.
const seedsFile = "../../tests/apidiff/seeds.yaml"

func newAsker(f testing.TB) *asker {
	f.Helper()
	s := apitest.Start(f, apitest.Options{Kinds: registry.Kinds(),
		Admission: func(s *apiserver.Server) []apiadmission.Interface {
			list, err := shoaladmission.Chain(shoaladmission.Config{
				Client: s.Client(), Informers: s.Informers(), Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
			})
			if err != nil {
				f.Fatal(err)
			}
			return list
		},
		Wrap: func(sec apiserver.Security) apiserver.Security {
			sec.Rules = noRules{}
			return sec
		}})
	s.Informers().Start(f.Context().Done())
	serviceRange(f, s.Client())
	config := s.Loopback()
	config.ContentConfig = rest.ContentConfig{}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		f.Fatal(err)
	}
	a := &asker{client: client, host: config.Host}
	seeds := readSeeds(f)
	a.make(f, seeds)
	a.discover(f, seeds)
	return a
}

func readSeeds(f testing.TB) []map[string]any {
	f.Helper()
	text, err := os.ReadFile(seedsFile)
	if err != nil {
		f.Fatal(err)
	}
	out := []map[string]any{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "diff"}},
		{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default"}},
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var o map[string]any
		if err := yaml.Unmarshal(doc, &o); err != nil {
			f.Fatal(err)
		}
		if o["kind"] != "CertificateSigningRequest" { // its key is not in the file
			out = append(out, o)
		}
	}
	return out
}

func gvkOf(o map[string]any) schema.GroupVersionKind {
	version, _ := o["apiVersion"].(string)
	name, _ := o["kind"].(string)
	return schema.FromAPIVersionAndKind(version, name)
}

func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// make stores the seeds.
func (a *asker) make(f testing.TB, seeds []map[string]any) {
	f.Helper()
	resources := map[schema.GroupVersionKind]metav1.APIResource{}
	for _, gv := range a.groupVersions(f) {
		for _, r := range a.resources(f, gv) {
			if !strings.Contains(r.Name, "/") {
				resources[gv.WithKind(r.Kind)] = r
			}
		}
	}
	for _, seed := range seeds {
		gvk := gvkOf(seed)
		r, ok := resources[gvk]
		if !ok {
			f.Fatalf("%s is not served", gvk)
		}
		if !slices.Contains(r.Verbs, "get") {
			continue // it is never stored
		}
		at := groupPath(gvk.GroupVersion())
		if r.Namespaced {
			at += "/namespaces/diff"
		}
		q := &asking{method: http.MethodPost, path: at + "/" + r.Name, typ: "application/json", body: encode(seed)}
		within(f, "the seed is made", func() error {
			got, err := a.do(q)
			if err == nil && got.code != http.StatusCreated && got.code != http.StatusConflict {
				err = fmt.Errorf("%d %s: %s", got.code, got.text, q.body)
			}
			return err
		})
	}
}

// within tries for a while: what admission reads follows what is written.
func within(tb testing.TB, what string, try func() error) {
	tb.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(5 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	tb.Fatalf("%s: %v", what, err)
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func (a *asker) groupVersions(tb testing.TB) []schema.GroupVersion {
	tb.Helper()
	var groups metav1.APIGroupList
	a.get(tb, "/apis", &groups)
	out := []schema.GroupVersion{{Version: "v1"}}
	for _, g := range groups.Groups {
		if g.Name == "none.example.com" {
			continue // the seed of an APIService has nobody behind it
		}
		for _, v := range g.Versions {
			out = append(out, schema.GroupVersion{Group: g.Name, Version: v.Version})
		}
	}
	return out
}

func (a *asker) resources(tb testing.TB, gv schema.GroupVersion) []metav1.APIResource {
	tb.Helper()
	var list metav1.APIResourceList
	a.get(tb, groupPath(gv), &list)
	return list.APIResources
}

func (a *asker) get(tb testing.TB, at string, into any) {
	tb.Helper()
	got, err := a.do(&asking{method: http.MethodGet, path: at})
	if err == nil && got.code != http.StatusOK {
		err = fmt.Errorf("%d %s", got.code, got.text)
	}
	if err == nil {
		err = json.Unmarshal(got.text, into)
	}
	if err != nil {
		tb.Fatalf("%s: %v", at, err)
	}
}

// served waits until something is at a path.
func (a *asker) served(tb testing.TB, at string) {
	tb.Helper()
	within(tb, at+" is served", func() error {
		got, err := a.do(&asking{method: http.MethodGet, path: at})
		if err == nil && got.code != http.StatusOK {
			err = fmt.Errorf("%d %s", got.code, got.text)
		}
		return err
	})
}

// discover notes what is served, custom resources of the seeds too.
func (a *asker) discover(f testing.TB, seeds []map[string]any) {
	f.Helper()
	a.served(f, "/apis/example.com/v1/seeds")
	a.served(f, "/apis/example.com/v1")
	seeds = append(seeds, map[string]any{"apiVersion": "example.com/v1", "kind": "Seed",
		"metadata": map[string]any{"name": "seed"}, "spec": map[string]any{"replicas": 1, "name": "a"}})
	a.make(f, seeds[len(seeds)-1:])
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientscheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			f.Fatal(err)
		}
	}
	versions := a.groupVersions(f)
	if own := (schema.GroupVersion{Group: "example.com", Version: "v1"}); !slices.Contains(versions, own) {
		versions = append(versions, own)
	}
	for _, gv := range versions {
		a.discoverVersion(f, gv, seeds, scheme)
	}
	if len(a.kinds) < 60 {
		f.Fatalf("%d kinds only", len(a.kinds))
	}
}

func (a *asker) discoverVersion(f testing.TB, gv schema.GroupVersion, seeds []map[string]any, scheme *runtime.Scheme) {
	f.Helper()
	list := a.resources(f, gv)
	for _, r := range list {
		if strings.Contains(r.Name, "/") {
			continue
		}
		k := &askedKind{APIResource: r, gv: gv, bodies: map[string]metav1.GroupVersionKind{}}
		for _, sub := range list {
			of, name, found := strings.Cut(sub.Name, "/")
			if found && of == r.Name && !slices.Contains(neverAsked, name) {
				k.bodies[name] = metav1.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
			}
		}
		for _, seed := range seeds {
			if gvkOf(seed) == gv.WithKind(r.Kind) {
				k.seeds = append(k.seeds, seed)
			}
		}
		if object, err := scheme.New(gv.WithKind(r.Kind)); err == nil {
			k.typ = reflect.TypeOf(object).Elem()
		}
		if len(k.seeds) > 0 {
			a.kinds = append(a.kinds, k)
		}
	}
}

// asking is one request.
type asking struct {
	method, path, query, typ, accept string
	body                             []byte
}

func (q *asking) String() string {
	return fmt.Sprintf("%s %s?%s (%s, accepts %s)\n%s", q.method, q.path, q.query, q.typ, q.accept, q.body)
}

// answered is what came back.
type answered struct {
	code int
	typ  string
	text []byte
}

// patience is for machines that are very busy.
const patience = 2 * time.Minute

func (a *asker) do(q *asking) (answered, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	at := a.host + q.path
	if q.query != "" {
		at += "?" + q.query
	}
	r, err := http.NewRequestWithContext(ctx, q.method, at, bytes.NewReader(q.body))
	if err != nil {
		return answered{}, err
	}
	r.Header.Set("Accept", "application/json")
	if q.accept != "" {
		r.Header.Set("Accept", q.accept)
	}
	if q.typ != "" {
		r.Header.Set("Content-Type", q.typ)
	}
	got, err := a.client.Do(r)
	if err != nil {
		return answered{}, err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	return answered{got.StatusCode, got.Header.Get("Content-Type"), text}, err
}

// ask fails the test on an answer that no client should get, and returns its code.
func (a *asker) ask(t *testing.T, q *asking) int {
	t.Helper()
	got, err := a.do(q)
	if err == nil {
		err = judge(q, got)
	}
	if err != nil {
		t.Errorf("%v: %s", err, q)
	}
	return got.code
}

// judge tells what is wrong with an answer.
func judge(q *asking, got answered) error {
	kind, status, err := read(got)
	switch {
	case err != nil:
		return fmt.Errorf("%d %q: %w", got.code, got.text, err)
	case got.code >= http.StatusInternalServerError && !isUpstreams(q, status):
		return fmt.Errorf("the server's own error: %d %s", got.code, got.text)
	case kind.Kind == "" || kind.APIVersion == "":
		return fmt.Errorf("%d %s: it says no kind", got.code, got.text)
	case got.code >= http.StatusBadRequest && (kind.Kind != "Status" || int(status.Code) != got.code):
		return fmt.Errorf("%d %s: it is no Status of this code", got.code, got.text)
	}
	return nil
}

// read returns what an answer is, and what of it would be in a Status.
func read(got answered) (kind metav1.TypeMeta, status metav1.Status, err error) {
	media, _, err := mime.ParseMediaType(got.typ)
	if err != nil {
		return kind, status, fmt.Errorf("Content-Type %q: %w", got.typ, err)
	}
	switch media {
	case "application/json":
		err = json.Unmarshal(got.text, &kind)
		_ = json.Unmarshal(got.text, &status) // of other kinds the fields may be others
	case "application/yaml":
		err = yaml.Unmarshal(got.text, &kind)
		_ = yaml.Unmarshal(got.text, &status)
	case "application/vnd.kubernetes.protobuf":
		object, found := bytes.CutPrefix(got.text, []byte("k8s\x00"))
		var u runtime.Unknown
		if err = u.Unmarshal(object); err == nil && !found {
			err = errors.New("no prefix")
		}
		kind = metav1.TypeMeta{APIVersion: u.APIVersion, Kind: u.Kind}
		_ = status.Unmarshal(u.Raw)
	default:
		err = fmt.Errorf("%s is no object", media)
	}
	return kind, status, err
}

// upstreams are errors that upstream's server, asked the same, answers with 500 too:
// the request is wrong, nothing came of it, and the library that both use says no
// more than that something failed.
var upstreams = []struct {
	method, typ string // of the request; any where empty
	says        *regexp.Regexp
}{
	// An object to apply does not fit its kind's schema, or its Go type.
	{http.MethodPatch, "application/apply-patch+yaml", regexp.MustCompile(`^failed to create typed patch object \(`)},
	{http.MethodPatch, "application/apply-patch+yaml",
		regexp.MustCompile(`^failed to convert new object \((?s:.*)\) to proper version: `)},
	// The scale of a custom resource cannot be applied to, whatever is in the request.
	{http.MethodPatch, "application/apply-patch+yaml", regexp.MustCompile(
		`^failed to create manager for existing fields: failed to convert live object \((?s:.*)\) to proper version: `)},
	// A strategic merge patch has lists that cannot be merged, or fields of a map's value.
	{http.MethodPatch, "application/strategic-merge-patch+json",
		regexp.MustCompile(`^map: map\[(?s:.*)\] does not contain declared merge key: \w+$`)},
	{http.MethodPatch, "application/strategic-merge-patch+json",
		regexp.MustCompile(`^(list element types are not identical: |no elements in any of the given slices$)`)},
	{http.MethodPatch, "application/strategic-merge-patch+json",
		regexp.MustCompile(`^unable to find api field in struct \w+ for the json field "`)},
	// A patch takes the version from a custom resource.
	{http.MethodPatch, "", regexp.MustCompile(`^Internal error occurred: Object 'apiVersion' is missing in 'object `)},
	// metadata.resourceVersion is no number.
	{"", "", regexp.MustCompile(`^strconv\.ParseUint: parsing "(?s:.*)": (invalid syntax|value out of range)$`)},
	// The form of a list is asked for, and the answer is one object.
	{"", "", regexp.MustCompile(`^content is not a list$`)},
	// A binding without a node, an eviction that is no dry run in a request that is one.
	{http.MethodPost, "application/json", regexp.MustCompile(`^target\.name: Required value$`)},
	{http.MethodPost, "application/json", regexp.MustCompile(`^Non-matching dry-run options in request and content: `)},
}

func isUpstreams(q *asking, status metav1.Status) bool {
	for _, u := range upstreams {
		if status.Code == http.StatusInternalServerError && (u.typ == "" || u.typ == q.typ) &&
			(u.method == "" || u.method == q.method) && u.says.MatchString(status.Message) {
			return true
		}
	}
	return false
}
