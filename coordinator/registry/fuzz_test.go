package registry_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// FuzzHandlers makes requests of objects of every kind and of changes in them. None
// may take its handler down, be answered with the server's own error, or with
// something that is no object.
func FuzzHandlers(f *testing.F) {
	a := newAsker(f)
	for i := range 60 {
		f.Add(randomBytes(uint64(i)))
	}
	f.Fuzz(func(t *testing.T, data []byte) { a.ask(t, a.request(newChoices(data))) })
}

// FuzzSchemas makes a CustomResourceDefinition of a schema, and objects of it.
func FuzzSchemas(f *testing.F) {
	a := newAsker(f)
	for i := range 4 {
		f.Add(randomBytes(uint64(i)))
	}
	f.Fuzz(func(t *testing.T, data []byte) { a.defineAndAsk(t, newChoices(data)) })
}

func randomBytes(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]byte, 64)
	for i := range out {
		out[i] = byte(r.UintN(256))
	}
	return out
}

// choices are made by the fuzzer's bytes as long as there are some, then by what
// follows from them.
type choices struct {
	data []byte
	then *rand.Rand
	// wrong schemas have what no definition may have.
	wrong bool
}

func newChoices(data []byte) *choices {
	seed := make([]byte, 8)
	copy(seed, data)
	return &choices{data: data, then: rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), uint64(len(data))))}
}

func (c *choices) n(most int) int {
	if most < 2 {
		return 0
	}
	if len(c.data) < 2 {
		return c.then.IntN(most)
	}
	n := binary.LittleEndian.Uint16(c.data)
	c.data = c.data[2:]
	return int(n) % most
}

func (c *choices) one(in int) bool { return c.n(in) == 0 }

func pick[T any](c *choices, list []T) T { return list[c.n(len(list))] }

var acceptable = []string{
	"", "", "", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
	"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
	"application/vnd.kubernetes.protobuf,application/json", "application/yaml",
}

// request makes one up. What writes is a dry run.
func (a *asker) request(c *choices) *asking { return a.requestOf(c, pick(c, a.kinds)) }

func (a *asker) requestOf(c *choices, k *askedKind) *asking {
	seed := copyOf(pick(c, k.seeds)).(map[string]any)
	q := &asking{path: groupPath(k.gv), query: "dryRun=All&fieldManager=fuzz", typ: "application/json",
		accept: pick(c, acceptable)}
	if k.Namespaced {
		q.path += "/namespaces/diff"
	}
	q.path += "/" + k.Name
	metadata, _ := seed["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if k.make != nil && c.one(2) {
		seed = k.make(c, seed)
	}
	if c.one(4) {
		q.query += "&fieldValidation=" + pick(c, []string{"Strict", "Warn", "Ignore"})
	}
	if name == "" || c.one(4) {
		q.method, q.body = http.MethodPost, encode(a.changed(c, seed, k.typ))
		return q
	}
	if c.one(12) {
		return collected(c, q)
	}
	q.path = path.Join(q.path, name)
	if subs := slices.Sorted(maps.Keys(k.bodies)); len(subs) > 0 && c.one(2) {
		sub := pick(c, subs)
		q.path += "/" + sub
		if body := k.bodies[sub]; body.Kind != "" && body.Kind != k.Kind {
			return a.other(c, q, body, name)
		}
	} else if c.one(12) {
		q.method, q.body = http.MethodDelete, deletion(c)
		return q
	}
	a.write(c, q, seed, k.typ)
	return q
}

// write changes an object, as a whole or by a patch.
func (a *asker) write(c *choices, q *asking, seed map[string]any, typ reflect.Type) {
	q.method = http.MethodPatch
	switch c.n(5) {
	case 0:
		q.method, q.body = http.MethodPut, encode(a.changed(c, seed, typ))
	case 1:
		q.typ, q.body = "application/merge-patch+json", encode(a.changed(c, patchOf(c, seed), typ))
	case 2:
		q.typ, q.body = "application/strategic-merge-patch+json", encode(a.changed(c, patchOf(c, seed), typ))
	case 3:
		q.typ, q.body = "application/apply-patch+yaml", encode(a.changed(c, seed, typ))
		q.query += "&force=true"
	default:
		q.typ, q.body = "application/json-patch+json", encode(a.operations(c, seed, typ))
	}
}

// patchOf is empty, or all of the object.
func patchOf(c *choices, seed map[string]any) map[string]any {
	if c.one(2) {
		return map[string]any{}
	}
	return seed
}

// operations are those of a JSON patch (RFC 6902).
func (a *asker) operations(c *choices, seed map[string]any, typ reflect.Type) any {
	var out []any
	for range 1 + c.n(3) {
		at, v, t := "", any(seed), typ
		for range c.n(6) {
			switch have := v.(type) {
			case map[string]any:
				names := slices.Sorted(maps.Keys(have))
				names = append(names, "-", "", "a/b~c")
				key := pick(c, names)
				at += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
				v, t = have[key], typeOf(t, key)
			case []any:
				i := c.n(len(have) + 2)
				at += fmt.Sprintf("/%d", i-1)
				if v = nil; i > 0 && i <= len(have) {
					v = have[i-1]
				}
				t = typeOf(t, "")
			}
		}
		op := map[string]any{"op": pick(c, []string{"add", "remove", "replace", "test", "copy", "move"}), "path": at}
		switch op["op"] {
		case "copy", "move":
			op["from"] = pick(c, []string{"/metadata", "/spec", "/metadata/name", at, ""})
		default:
			op["value"] = c.edit(copyOf(v), t)
		}
		out = append(out, op)
	}
	return out
}

// other asks a subresource with a body of another kind.
func (a *asker) other(c *choices, q *asking, gvk metav1.GroupVersionKind, name string) *asking {
	version := schema.GroupVersion{Group: gvk.Group, Version: gvk.Version}
	body := map[string]any{"apiVersion": version.String(), "kind": gvk.Kind, "metadata": map[string]any{"name": name}}
	var typ reflect.Type
	if object, err := clientscheme.Scheme.New(version.WithKind(gvk.Kind)); err == nil {
		typ = reflect.TypeOf(object).Elem()
	}
	if gvk.Kind == "Scale" {
		a.write(c, q, body, typ)
		return q
	}
	q.method, q.body = http.MethodPost, encode(a.changed(c, body, typ))
	return q
}

var listParameters = []string{
	"labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "timeoutSeconds",
}

var listValues = []string{
	"a", "0", "-1", "1", "a%3Db", "%21a", "metadata.name%3Dseed", "metadata.namespace%21%3Da", "spec.host%3Da",
	"a+in+%28b%2Cc%29", "NotOlderThan", "Exact", "spec.nodeName%21%3Da", "99999999999999999999", "%00",
	"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0", "status.phase%3DRunning%2Ca", "%3D", "a%3D%5C", "%2C",
}

// collected lists or deletes a collection, by selectors of all kinds.
func collected(c *choices, q *asking) *asking {
	q.method = http.MethodGet
	var parameters []string
	for range c.n(4) {
		parameters = append(parameters, pick(c, listParameters)+"="+pick(c, listValues))
	}
	q.query = strings.Join(parameters, "&")
	if c.one(4) {
		q.method, q.body = http.MethodDelete, deletion(c)
	}
	return q
}

// deletion are options of a dry run.
func deletion(c *choices) []byte {
	o := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
	if c.one(2) {
		o, _ = c.edit(o, reflect.TypeFor[metav1.DeleteOptions]()).(map[string]any)
		if o == nil {
			o = map[string]any{}
		}
	}
	o["dryRun"] = []any{"All"}
	return encode(o)
}

// changed is an object with some edits.
func (a *asker) changed(c *choices, o map[string]any, typ reflect.Type) any {
	version, kind := o["apiVersion"], o["kind"]
	var out any = o
	for range 1 + c.n(4) {
		out = c.edit(out, typ)
	}
	if m, ok := out.(map[string]any); ok && !c.one(8) { // else little but the kind would be looked at
		if version != nil {
			m["apiVersion"] = version
		}
		if kind != nil {
			m["kind"] = kind
		}
	}
	return out
}

func copyOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = copyOf(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = copyOf(v[i])
		}
		return out
	}
	return v
}
