package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
)

// What stands in bodies for what each server makes itself.
const uidMark, versionMark, accessMark = "$UID", "$VERSION", "$ACCESS"

// request is one that both servers get.
type request struct {
	Method, Path string
	Type, Accept string // of the contents
	Body         []byte
	What         string // a class of requests: create, update, patch, …
	Kind         string
	How          string // what was changed
	// Live is the path of the object that the marks in Body are of.
	Live   string
	ignore map[string]bool
	as     *subject // who asks, if not the administrator
}

const dryRun = "?dryRun=All&fieldValidation=Warn"

// patchTypes and the names of their classes.
var patchTypes = [][2]string{
	{"application/merge-patch+json", "merge patch"}, {"application/json-patch+json", "JSON patch"},
	{"application/strategic-merge-patch+json", "strategic patch"}, {"application/apply-patch+yaml", "apply"},
}

// makeRequest makes the request of a number. The same seed, number and kinds
// make the same request.
func makeRequest(seed uint64, i int, ks []*kind) (request, bool) {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	sum := 0
	for _, k := range ks {
		sum += k.weight
	}
	n := r.IntN(sum)
	var k *kind
	for _, k = range ks {
		if n -= k.weight; n < 0 {
			break
		}
	}
	turn := r.IntN(100)
	if len(k.live) == 0 || turn < 45 {
		return k.creation(r), true
	}
	o := k.live[r.IntN(len(k.live))]
	switch {
	case turn < 65:
		return k.update(r, o, ""), true
	case turn < 80:
		return k.patch(r, o, ""), true
	case turn < 95 && k.has("status"):
		if r.IntN(2) == 0 {
			return k.patch(r, o, "status"), true
		}
		return k.update(r, o, "status"), true
	}
	return k.beside(r, o)
}

// made gives a seed the names and addresses of an object that does not exist.
var made = strings.NewReplacer("seed", "made", "10.96.0.7", "10.96.0.17", "3077", "3087", "10.97.0.5", "10.97.0.6",
	"10.98.0.0", "10.99.0.0", "csi.example.com", "csj.example.com", "none.example.com", "nine.example.com",
	`"example.com"`, `"example.org"`, "seeds.example.com", "mades.example.org")

// mutate changes one place, now and then two.
func (k *kind) mutate(r *rand.Rand, o map[string]any, status bool) (map[string]any, edit, string) {
	var how []string
	var first edit
	for range 1 + r.IntN(6)/5 {
		spots := k.spots(o, status)
		if len(spots) == 0 {
			break
		}
		s := spots[r.IntN(len(spots))]
		if s.path[0] == "metadata" && r.IntN(3) > 0 { // which all kinds share
			s = spots[r.IntN(len(spots))]
		}
		e := k.change(r, s)
		if changed, ok := apply(o, e.path, e).(map[string]any); ok {
			o = changed
			how = append(how, e.how+" "+pathText(e.path))
			first = e
		}
	}
	return o, first, strings.Join(how, ", ")
}

func pathText(path []any) string {
	var out strings.Builder
	for _, p := range path {
		if _, index := p.(int); index {
			fmt.Fprintf(&out, "[%d]", p)
		} else {
			fmt.Fprintf(&out, ".%s", p)
		}
	}
	return strings.TrimPrefix(out.String(), ".")
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // it was made of JSON
	}
	return data
}

func (k *kind) creation(r *rand.Rand) request {
	o := k.seeds[r.IntN(len(k.seeds))]
	if k.can("get") {
		var renamed map[string]any
		if err := json.Unmarshal([]byte(made.Replace(string(encode(o)))), &renamed); err != nil {
			panic(err)
		}
		o = renamed
	}
	o, _, how := k.mutate(r, o, false)
	return request{Method: http.MethodPost, Path: k.collection() + dryRun, Type: "application/json", Body: encode(o),
		What: "create", Kind: k.String(), How: how}
}

func (k *kind) path(o *liveObject, subresource string) string {
	p := k.collection() + "/" + o.name
	if subresource != "" {
		p += "/" + subresource
	}
	return p
}

func (k *kind) update(r *rand.Rand, o *liveObject, subresource string) request {
	object := o.object
	if subresource == "status" && r.IntN(2) == 0 {
		object = k.withStatus(r, object)
	}
	object, _, how := k.mutate(r, object, subresource == "status")
	return request{Method: http.MethodPut, Path: k.path(o, subresource) + dryRun, Type: "application/json",
		Body: encode(object), What: strings.TrimSpace("update " + subresource), Kind: k.String(), How: how,
		Live: k.path(o, ""), ignore: o.differ}
}

// withStatus gives an object a status with anything in it.
func (k *kind) withStatus(r *rand.Rand, o map[string]any) map[string]any {
	for _, f := range fields(k.goType) {
		if f.name == "status" {
			o = maps.Clone(o)
			o["status"] = k.generate(r, f.typ, nil, 0)
		}
	}
	return o
}

func (k *kind) patch(r *rand.Rand, o *liveObject, subresource string) request {
	kind := patchTypes[r.IntN(len(patchTypes))]
	req := request{Method: http.MethodPatch, Path: k.path(o, subresource) + dryRun, Type: kind[0],
		What: strings.TrimSpace(kind[1] + " " + subresource), Kind: k.String(), Live: k.path(o, ""), ignore: o.differ}
	object := o.object
	if subresource == "status" {
		object = k.withStatus(r, object)
	}
	changed, e, how := k.mutate(r, object, subresource == "status")
	req.How = how
	switch kind[1] {
	case "apply":
		req.Path += "&fieldManager=apidiff-apply&force=true"
		meta, _ := changed["metadata"].(map[string]any)
		if meta = maps.Clone(meta); meta != nil {
			delete(meta, "uid")
			delete(meta, "resourceVersion")
			changed["metadata"] = meta
		}
		req.Body = encode(changed)
	case "JSON patch":
		op := map[string]any{"op": "add", "path": pointer(e.path), "value": e.value}
		if e.remove {
			op = map[string]any{"op": "remove", "path": pointer(e.path)}
		}
		if subresource == "status" && r.IntN(2) == 0 {
			op = map[string]any{"op": "add", "path": "/status", "value": changed["status"]}
		}
		req.Body = encode([]any{op})
	default:
		req.Body = encode(mergePatch(changed, e))
		if subresource == "status" && r.IntN(2) == 0 {
			req.Body = encode(map[string]any{"status": changed["status"]})
		}
	}
	return req
}

func pointer(path []any) string {
	var out strings.Builder
	for _, p := range path {
		s := strings.NewReplacer("~", "~0", "/", "~1").Replace(fmt.Sprint(p))
		out.WriteString("/" + s)
	}
	return out.String()
}

// mergePatch holds the changed place; of a list, all of it.
func mergePatch(changed map[string]any, e edit) any {
	var at func(v any, path []any) any
	at = func(v any, path []any) any {
		if len(path) == 0 {
			return v
		}
		key, isKey := path[0].(string)
		o, isObject := v.(map[string]any)
		if !isKey || !isObject {
			return v
		}
		return map[string]any{key: at(o[key], path[1:])}
	}
	return at(changed, e.path)
}

// beside makes a request that neither creates nor changes the object itself.
func (k *kind) beside(r *rand.Rand, o *liveObject) (request, bool) {
	req := request{Kind: k.String(), Type: "application/json", Live: k.path(o, ""), ignore: o.differ}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var subs []string
	for _, sub := range k.subresources {
		switch sub {
		case "scale", "eviction", "binding", "token", "approval", "finalize", "ephemeralcontainers", "resize":
			subs = append(subs, sub)
		}
	}
	if len(subs) > 0 && r.IntN(3) > 0 {
		sub := pick(subs...)
		req.What, req.Method, req.Path = sub, http.MethodPost, k.path(o, sub)+dryRun
		number := []any{0, 1, 3, -1, 2147483647, "a", nil, 1.5}[r.IntN(8)]
		text := pick("a", "", "Bad_Name!", "seed", "diff")
		meta := map[string]any{"name": pick(o.name, o.name, o.name, "another", ""), "namespace": pick("diff", "diff",
			"diff", "default")}
		switch sub {
		case "scale":
			req.Method = http.MethodPut
			req.Body = encode(map[string]any{"apiVersion": pick("autoscaling/v1", "autoscaling/v1", "v1", "apps/v1"),
				"kind":     "Scale",
				"metadata": meta, "spec": map[string]any{"replicas": number}})
			if r.IntN(2) == 0 {
				req.Method, req.Type = http.MethodPatch, patchTypes[r.IntN(3)][0]
				req.Body = encode(map[string]any{"spec": map[string]any{"replicas": number}})
			}
		case "eviction":
			req.Body = encode(map[string]any{"apiVersion": pick("policy/v1", "policy/v1", "policy/v1beta1"),
				"kind": "Eviction", "metadata": meta,
				"deleteOptions": map[string]any{"gracePeriodSeconds": number, "dryRun": []any{"All"},
					"propagationPolicy": pick("Background", "Orphan", "None")}})
		case "binding":
			req.Body = encode(map[string]any{"apiVersion": "v1", "kind": "Binding", "metadata": meta,
				"target": map[string]any{"kind": pick("Node", "Node", "", "Pod"), "name": text}})
		case "token":
			req.Body = encode(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
				"metadata": meta,
				"spec": map[string]any{"audiences": []any{text}, "expirationSeconds": []any{600, 599, 3600, -1,
					4294967297, nil}[r.IntN(6)],
					"boundObjectRef": []any{nil, map[string]any{"kind": pick("Pod", "Secret", "Node", "Job", ""),
						"apiVersion": "v1",
						"name":       text}}[r.IntN(2)]}})
		default:
			u := k.update(r, o, sub)
			u.What = sub
			if sub == "approval" {
				u.Body = encode(apply(o.object, []any{"status", "conditions"}, edit{value: []any{map[string]any{
					"type": pick("Approved", "Denied", "Failed", "Other", ""), "status": pick("True", "False", "Bad",
						"")}}}))
			}
			return u, true
		}
		return req, true
	}
	switch r.IntN(3) {
	case 0:
		req.What, req.Method, req.Path = "delete", http.MethodDelete, k.path(o, "")+"?dryRun=All"
		// A body with options stands for those of the path.
		options := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": []any{"All"}}
		options[pick("gracePeriodSeconds", "propagationPolicy", "orphanDependents", "preconditions", "unknownField")] =
			[]any{0, -1, 30, "Orphan", "Foreground", "Background", "None", true, map[string]any{"uid": "a"},
				map[string]any{"resourceVersion": "1"},
				[]any{"All"}, []any{"Some"}, nil}[r.IntN(13)]
		req.Body = encode(options)
		if r.IntN(4) == 0 {
			req.Body = nil
		}
	case 1:
		q := url.Values{}
		q.Set(pick("fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch", "continue",
			"timeoutSeconds"),
			pick("metadata.name=seed", "metadata.namespace=diff", "spec.nodeName=", "status.phase=Running",
				"type=Opaque", "a=b", "a in (b,c)",
				"!a", "a,b!=c", "metadata.name!=seed", "spec.unschedulable=true", "reason=Seeded",
				"involvedObject.name=seed", "spec.driver=a",
				"spec.signerName=a", "status.successful=0", "1", "-1", "x", "0", "Exact", "NotOlderThan", "=", "a==b",
				"a=b=c", "metadata.uid=a"))
		req.What, req.Method, req.Path = "list", http.MethodGet, k.collection()+"?"+q.Encode()
		req.ignore = k.ignoreInList
	default:
		u := k.update(r, o, "")
		q := url.Values{}
		q.Set(pick("dryRun", "fieldManager", "fieldValidation", "force", "pretty"),
			pick("All", "Some", "", "Strict", "Ignore", "Warn", "true", strings.Repeat("a", 129), "a\x01", "none"))
		u.Path, u.What = strings.TrimSuffix(u.Path, dryRun)+"?dryRun=All&"+q.Encode(), "options"
		return u, true
	}
	return req, true
}
