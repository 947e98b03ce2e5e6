package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// asTable asks for what kubectl prints.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// defaults are objects that a server makes of itself.
var defaults = []string{
	"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
	"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
	"/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
	"/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/apiregistration.k8s.io/v1/apiservices",
	"/apis/networking.k8s.io/v1/servicecidrs", "/api/v1/namespaces",
}

// surface compares what does not come of mutated objects: discovery, documents,
// health, lists and tables of each kind, objects that are not there.
func surface(ctx context.Context, p *pair, ks []*kind, r *report) error {
	ask := func(req request) error { return r.ask(ctx, p, req) }
	paths := []string{"/", "/api", "/apis", "/api/v1", "/openid/v1/jwks", "/.well-known/openid-configuration",
		"/healthz", "/livez", "/readyz",
		"/healthz/ping", "/healthz/etcd", "/livez/ping", "/readyz/informer-sync", "/readyz/nothing", "/nothing",
		"/apis/nothing",
		"/apis/apps/v9", "/api/v1/nothing", "/flagz", "/statusz", "/openapi/v3"}
	versions, err := groupVersions(ctx, p.upstream)
	if err != nil {
		return err
	}
	for _, gv := range versions {
		paths = append(paths, groupPath(gv))
		if gv.Group != "" {
			paths = append(paths, "/apis/"+gv.Group)
		}
		paths = append(paths, "/openapi/v3"+strings.Replace(groupPath(gv), "/api", "/api", 1))
	}
	for _, path := range append(paths, "/openapi/v2") {
		req := request{Method: http.MethodGet, Path: path, What: "surface", Kind: path}
		if p.upstream.tape != nil && strings.HasPrefix(path, "/openapi/") {
			continue
		}
		if err := ask(req); err != nil {
			return err
		}
	}
	for _, path := range []string{"/api", "/apis"} {
		for _, v := range []string{"v2", "v2beta1"} {
			accept := "application/json;g=apidiscovery.k8s.io;v=" + v + ";as=APIGroupDiscoveryList"
			if err := ask(request{Method: http.MethodGet, Path: path, Accept: accept, What: "surface",
				Kind: path + " " + v}); err != nil {
				return err
			}
		}
	}
	for _, path := range defaults {
		if err := compareDefaults(ctx, p, r, path); err != nil {
			return err
		}
	}
	for _, k := range ks {
		for _, req := range k.plain() {
			req.Kind = k.String()
			if err := ask(req); err != nil {
				return err
			}
		}
	}
	return nil
}

// plain are requests that are made once for a kind.
func (k *kind) plain() []request {
	if !k.can("get") {
		return nil
	}
	none := k.collection() + "/none"
	out := []request{
		{Method: http.MethodGet, Path: none, What: "get none"},
		{Method: http.MethodDelete, Path: none, What: "delete none"},
		{Method: http.MethodPatch, Path: none, Type: "application/merge-patch+json", Body: []byte("{}"),
			What: "patch none"},
		{Method: http.MethodPost, Path: none, Type: "application/json", Body: []byte("{}"), What: "post to an object"},
		{Method: http.MethodPost, Path: k.collection(), Type: "application/json", Body: []byte("{"),
			What: "create from bad JSON"},
		{Method: http.MethodPost, Path: k.collection() + "?dryRun=All", Type: "application/json", Body: []byte("{}"),
			What: "create from nothing"},
		{Method: http.MethodPost, Path: k.collection(), Type: "text/plain", Body: []byte("{}"),
			What: "create from text"},
		{Method: http.MethodGet, Path: k.collection(), Accept: "text/plain", What: "list as text"},
		{Method: http.MethodGet, Path: k.collection() + "?watch=true&resourceVersion=x", What: "watch"},
	}
	for _, seed := range k.seeds {
		var o map[string]any
		text := strings.ReplaceAll(string(encode(seed)), "seed", "none")
		if json.Unmarshal([]byte(text), &o) != nil {
			continue
		}
		name := o["metadata"].(map[string]any)["name"].(string)
		body := encode(o)
		path := k.collection() + "/" + name + dryRun
		out = append(out,
			request{Method: http.MethodPut, Path: path, Type: "application/json", Body: body, What: "update none"},
			request{Method: http.MethodPatch, Path: path + "&fieldManager=a", Type: "application/apply-patch+yaml",
				Body: body, What: "apply none"})
		if k.has("status") {
			out = append(out, request{Method: http.MethodPut, Path: k.collection() + "/" + name + "/status" + dryRun,
				Type: "application/json",
				Body: body, What: "update status none"})
		}
		break
	}
	for _, o := range k.live {
		for _, path := range k.elsewhere(o) {
			out = append(out, request{Method: http.MethodGet, Path: path, What: "get in another version",
				ignore: o.differ})
		}
		out = append(out,
			request{Method: http.MethodGet, Path: k.path(o, ""), Accept: asTable, What: "table", ignore: o.differ},
			request{Method: http.MethodDelete, Path: k.path(o, "") + "?dryRun=All", What: "delete", ignore: o.differ},
			request{Method: http.MethodGet, Path: k.path(o, ""),
				Accept: "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", What: "metadata",
				ignore: o.differ})
		for _, sub := range []string{"status", "scale"} {
			if k.has(sub) {
				out = append(out, request{Method: http.MethodGet, Path: k.path(o, sub), Accept: asTable,
					What:   "table of " + sub,
					ignore: o.differ})
			}
		}
	}
	return out
}

// elsewhere are the paths of an object in the other versions and groups that have it.
func (k *kind) elsewhere(o *liveObject) []string {
	path := k.path(o, "")
	switch k.Name {
	case "horizontalpodautoscalers":
		other := map[string]string{"v1": "v2", "v2": "v1"}[k.gv.Version]
		return []string{strings.Replace(path, "/"+k.gv.Version+"/", "/"+other+"/", 1)}
	case "events":
		if k.gv.Group == "" {
			return []string{strings.Replace(path, "/api/v1/", "/apis/events.k8s.io/v1/", 1)}
		}
		return []string{strings.Replace(path, "/apis/events.k8s.io/v1/", "/api/v1/", 1)}
	}
	return nil
}

// compareDefaults compares lists by the names of their objects.
func compareDefaults(ctx context.Context, p *pair, r *report, path string) error {
	var lists [2]map[string]map[string]any
	for i, s := range []*server{p.upstream, p.shoal} {
		var l struct{ Items []map[string]any }
		if err := get(ctx, s, path, &l); err != nil {
			return err
		}
		lists[i] = map[string]map[string]any{}
		for _, o := range l.Items {
			m := o["metadata"].(map[string]any)
			lists[i][fmt.Sprint(m["namespace"], "/", m["name"])] = o
		}
	}
	for name, up := range lists[0] {
		req := request{Method: http.MethodGet, Path: path, What: "defaults",
			Kind:   path + " " + strings.TrimPrefix(name, "<nil>/"),
			ignore: map[string]bool{"metadata.managedFields": true, "status": true}}
		a, b := answer{Code: 200, Body: encode(up)}, answer{Code: 404, Body: []byte("not there")}
		if here, ok := lists[1][name]; ok {
			b = answer{Code: 200, Body: encode(here)}
		}
		r.judge(req, a, b)
	}
	for name, here := range lists[1] {
		if _, ok := lists[0][name]; !ok {
			r.judge(request{Method: http.MethodGet, Path: path, What: "defaults",
				Kind: path + " " + strings.TrimPrefix(name, "<nil>/")},
				answer{Code: 404, Body: []byte("not there")}, answer{Code: 200, Body: encode(here)})
		}
	}
	return nil
}
