package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"
)

//go:embed seeds.yaml
var seedsText []byte

// namespace holds all seeds that have one.
const namespace = "diff"

// kind is one that upstream serves.
type kind struct {
	gv schema.GroupVersion
	metav1.APIResource
	subresources []string
	goType       reflect.Type
	defs         definitions
	seeds        []map[string]any
	live         []*liveObject
	ignoreInList map[string]bool // what controllers write in objects of the kind
	weight       int
}

// liveObject is a seed that exists in both servers.
type liveObject struct {
	name   string
	object map[string]any // upstream's, without what each server makes itself
	differ map[string]bool
}

// collection is the path of the kind's objects.
func (k *kind) collection() string {
	p := "/apis/" + k.gv.Group + "/" + k.gv.Version
	if k.gv.Group == "" {
		p = "/api/" + k.gv.Version
	}
	if k.Namespaced {
		p += "/namespaces/" + namespace
	}
	return p + "/" + k.Name
}

func (k *kind) String() string {
	if k.gv.Group == "" {
		return k.Name
	}
	return k.Name + "." + k.gv.Group
}

func (k *kind) can(verb string) bool { return slices.Contains(k.Verbs, verb) }

func (k *kind) has(subresource string) bool { return slices.Contains(k.subresources, subresource) }

// types knows the Go types of kinds.
func types() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(apiregistrationv1.AddToScheme(s))
	return s
}

// discover returns the kinds that upstream serves and that have seeds. A kind
// without a seed is an error: nothing would be compared.
func discover(ctx context.Context, p *pair, only string) ([]*kind, error) {
	seeds, err := readSeeds()
	if err != nil {
		return nil, err
	}
	var defs struct {
		Definitions definitions `json:"definitions"`
	}
	if err := get(ctx, p.upstream, "/openapi/v2", &defs); err != nil {
		return nil, err
	}
	versions, err := groupVersions(ctx, p.upstream)
	if err != nil {
		return nil, err
	}
	scheme := types()
	var out []*kind
	var without []string
	for _, gv := range versions {
		if strings.HasSuffix(gv.Group, "example.com") { // made of a seed, when a tape was recorded
			continue
		}
		var list metav1.APIResourceList
		if err := get(ctx, p.upstream, groupPath(gv), &list); err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			k := &kind{gv: gv, APIResource: r, defs: defs.Definitions}
			for _, sub := range list.APIResources {
				if of, name, found := strings.Cut(sub.Name, "/"); found && of == r.Name {
					k.subresources = append(k.subresources, name)
				}
			}
			if !k.can("create") || k.Name == "bindings" {
				continue
			}
			k.seeds = seeds[gv.WithKind(r.Kind)]
			if len(k.seeds) == 0 {
				without = append(without, k.String())
				continue
			}
			object, err := scheme.New(gv.WithKind(r.Kind))
			if err != nil {
				return nil, err
			}
			k.goType = reflect.TypeOf(object).Elem()
			for k.weight = 1; k.weight*k.weight < len(k.spots(k.seeds[0], false)); k.weight++ {
			}
			if only == "" || slices.Contains(strings.Split(only, ","), r.Name) {
				out = append(out, k)
			}
		}
	}
	if len(without) > 0 {
		return nil, fmt.Errorf("kinds without a seed in seeds.yaml: %s", strings.Join(without, ", "))
	}
	return out, nil
}

func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

func groupVersions(ctx context.Context, s *server) ([]schema.GroupVersion, error) {
	var groups metav1.APIGroupList
	if err := get(ctx, s, "/apis", &groups); err != nil {
		return nil, err
	}
	out := []schema.GroupVersion{{Version: "v1"}}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			out = append(out, schema.GroupVersion{Group: g.Name, Version: v.Version})
		}
	}
	return out, nil
}

func get(ctx context.Context, s *server, path string, into any) error {
	a, err := s.do(ctx, request{Method: http.MethodGet, Path: path})
	if err != nil {
		return err
	}
	if a.Code != http.StatusOK {
		return fmt.Errorf("%s: %s: %d: %s", s.name, path, a.Code, a.Body)
	}
	return json.Unmarshal(a.Body, into)
}

func readSeeds() (map[schema.GroupVersionKind][]map[string]any, error) {
	out := map[schema.GroupVersionKind][]map[string]any{}
	for _, doc := range bytes.Split(seedsText, []byte("\n---\n")) {
		var o map[string]any
		if err := yaml.Unmarshal(doc, &o); err != nil {
			return nil, fmt.Errorf("seeds.yaml: %w: %s", err, doc)
		}
		apiVersion, _ := o["apiVersion"].(string)
		name, _ := o["kind"].(string)
		gvk := schema.FromAPIVersionAndKind(apiVersion, name)
		out[gvk] = append(out[gvk], o)
	}
	return out, nil
}

// prepare makes the seeds in both servers.
func prepare(ctx context.Context, p *pair, ks []*kind, r *report) error {
	for _, made := range [][2]string{
		{"/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"diff"}}`},
		{"/api/v1/namespaces/diff/serviceaccounts",
			`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`},
	} {
		for _, s := range []*server{p.upstream, p.shoal} {
			a, err := s.do(ctx, request{Method: http.MethodPost, Path: made[0], Type: "application/json",
				Body: []byte(made[1])})
			if err != nil {
				return err
			}
			if a.Code != http.StatusCreated && a.Code != http.StatusConflict {
				return fmt.Errorf("%s: %s: %d: %s", s.name, made[0], a.Code, a.Body)
			}
		}
	}
	var refused []error
	for _, k := range ks {
		for _, seed := range k.seeds {
			refused = append(refused, k.make(ctx, p, seed, r))
		}
	}
	if err := errors.Join(refused...); err != nil {
		return err
	}
	return settle(ctx, p, ks)
}

func (k *kind) make(ctx context.Context, p *pair, seed map[string]any, r *report) error {
	body, err := json.Marshal(seed)
	if err != nil {
		return err
	}
	req := request{Method: http.MethodPost, Path: k.collection(), Type: "application/json", Body: body,
		What: "create", Kind: k.String()}
	if !k.can("get") { // a review is never stored
		return r.ask(ctx, p, req)
	}
	up, err := p.upstream.do(ctx, req)
	if err != nil {
		return err
	}
	if up.Code != http.StatusCreated {
		return fmt.Errorf("upstream refuses the seed: %s: %d: %s", body, up.Code, up.Body)
	}
	here, err := p.shoal.do(ctx, req)
	if err != nil {
		return err
	}
	r.judge(req, up, here)
	if here.Code != http.StatusCreated {
		return nil
	}
	name := seed["metadata"].(map[string]any)["name"].(string)
	k.live = append(k.live, &liveObject{name: name, differ: map[string]bool{}})
	return nil
}

// settle waits until nobody writes the seeds any more, reads them, and notes
// where those of the two servers differ.
func settle(ctx context.Context, p *pair, ks []*kind) error {
	last := ""
	for quiet := 0; quiet < 2; {
		var versions strings.Builder
		for _, k := range ks {
			var list struct {
				Items []struct {
					Metadata struct{ ResourceVersion string }
				}
			}
			if len(k.live) == 0 {
				continue
			}
			if err := get(ctx, p.shoal, k.collection(), &list); err != nil {
				return err
			}
			fmt.Fprint(&versions, list)
		}
		if quiet++; versions.String() != last {
			quiet, last = 0, versions.String()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	for _, k := range ks {
		for _, o := range k.live {
			if err := k.read(ctx, p, o); err != nil {
				return err
			}
		}
		if err := k.readList(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// readList notes whether lists of the kind can be compared: where controllers make
// or write objects, what is in them depends on the time.
func (k *kind) readList(ctx context.Context, p *pair) error {
	if len(k.live) == 0 || !k.can("list") {
		return nil
	}
	var up, here any
	if err := get(ctx, p.upstream, k.collection(), &up); err != nil {
		return err
	}
	if err := get(ctx, p.shoal, k.collection(), &here); err != nil {
		return err
	}
	strip(up)
	strip(here)
	if k.Name == "nodes" || len(differ("", up, here)) > 0 {
		k.ignoreInList = map[string]bool{"items": true, "metadata.remainingItemCount": true}
	}
	return nil
}

func (k *kind) read(ctx context.Context, p *pair, o *liveObject) error {
	var here map[string]any
	if err := k.readOne(ctx, p.upstream, o, &o.object); err != nil {
		return err
	}
	if err := k.readOne(ctx, p.shoal, o, &here); err != nil {
		return err
	}
	for _, d := range differ("", o.object, here) {
		if d.path == "metadata.resourceVersion" || strings.HasPrefix(d.path, "metadata.managedFields") {
			continue
		}
		o.differ[d.path] = true
		if strings.HasPrefix(d.path, "status") { // a controller wrote it, and a table may show it
			o.differ["rows"] = true
		}
	}
	// Whoever writes a time of the object owns it only where the other server has another.
	for path := range timesDiffer("", o.object, here) {
		o.differ[path] = true
	}
	if k.Name == "nodes" { // a node that nobody runs is tainted after a while
		for _, path := range []string{"spec.taints", "status", "rows", "metadata.annotations"} {
			o.differ[path] = true
		}
	}
	if k.Name == "customresourcedefinitions" { // its conditions come when they come
		o.differ["status.conditions"] = true
	}
	meta := o.object["metadata"].(map[string]any)
	for _, f := range []string{"managedFields", "creationTimestamp", "generation"} {
		delete(meta, f)
	}
	meta["resourceVersion"] = versionMark
	return nil
}

// timesDiffer names the times that two servers have stored otherwise in an object,
// beside those of its metadata.
func timesDiffer(path string, up, here any) map[string]bool {
	out := map[string]bool{}
	switch u := up.(type) {
	case map[string]any:
		h, _ := here.(map[string]any)
		for key, value := range u {
			if key != "creationTimestamp" && key != "managedFields" {
				maps.Copy(out, timesDiffer(strings.TrimPrefix(path+"."+key, "."), value, h[key]))
			}
		}
	case []any:
		h, _ := here.([]any)
		for i := range min(len(u), len(h)) {
			maps.Copy(out, timesDiffer(path+"[]", u[i], h[i]))
		}
	case string:
		if h, ok := here.(string); ok && u != h && clock.MatchString(u) && clock.MatchString(h) {
			out[path] = true
		}
	}
	return out
}

// readOne reads an object with marks for what its server made: its UID, which Jobs
// have in labels too, and the name of a Pod's token volume.
func (k *kind) readOne(ctx context.Context, s *server, o *liveObject, into *map[string]any) error {
	if err := get(ctx, s, k.path(o, ""), into); err != nil {
		return err
	}
	meta, _ := (*into)["metadata"].(map[string]any)
	uid, _ := meta["uid"].(string)
	if uid == "" {
		return fmt.Errorf("%s: %s has no uid", s.name, k.path(o, ""))
	}
	text := strings.ReplaceAll(string(encode(*into)), uid, uidMark)
	text = tokenVolume.ReplaceAllLiteralString(text, accessMark)
	*into = nil
	return json.Unmarshal([]byte(text), into)
}
