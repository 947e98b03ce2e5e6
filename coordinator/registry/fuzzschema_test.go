package registry_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// custom is the group of the definitions that are made up.
const custom = "example.com"

// defineAndAsk makes a definition, and requests of its objects while it is there. It
// tells whether the definition was taken.
func (a *asker) defineAndAsk(t *testing.T, c *choices) bool {
	a.made++
	c.wrong = c.one(4)
	plural := fmt.Sprintf("fuzz%ds", a.made)
	root := c.rootSchema()
	definition := c.definition(plural, root)
	const at = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	q := &asking{method: http.MethodPost, path: at, typ: "application/json", body: encode(definition)}
	if a.ask(t, q) != http.StatusCreated {
		return false
	}
	name := plural + "." + custom
	defer a.ask(t, &asking{method: http.MethodDelete, path: at + "/" + name})
	k := &askedKind{gv: schema.GroupVersion{Group: custom, Version: "v1"},
		APIResource: metav1.APIResource{Name: plural, Kind: "Fuzz" + plural, Namespaced: true},
		bodies: map[string]metav1.GroupVersionKind{
			"status": {}, "scale": {Group: "autoscaling", Version: "v1", Kind: "Scale"},
		}}
	k.make = func(c *choices, seed map[string]any) map[string]any {
		out, _ := c.instance(root, 0).(map[string]any)
		if out == nil {
			out = map[string]any{}
		}
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			out[name] = copyOf(seed[name])
		}
		return out
	}
	bare := map[string]any{"apiVersion": custom + "/v1", "kind": k.Kind, "metadata": map[string]any{"name": "seed"}}
	seed := k.make(c, bare)
	k.seeds = []map[string]any{seed}
	all := groupPath(k.gv) + "/namespaces/diff/" + plural
	a.served(t, all)
	a.ask(t, &asking{method: http.MethodPost, path: all, typ: "application/json", body: encode(seed)})
	for range 12 {
		if k.gv.Version = "v1"; c.one(4) {
			k.gv.Version = "v2"
		}
		seed["apiVersion"] = k.gv.String()
		a.ask(t, a.requestOf(c, k))
	}
	if c.one(4) {
		a.ask(t, &asking{method: http.MethodPut, path: at + "/" + name, query: "dryRun=All", typ: "application/json",
			body: encode(c.definition(plural, c.rootSchema()))})
	}
	if c.one(8) { // other kinds' documents are made anew by this
		a.served(t, "/openapi/v3/apis/"+custom+"/v1")
		a.served(t, "/openapi/v2")
	}
	return true
}

// definition has two versions, of which the second has a schema of its own now and
// then.
func (c *choices) definition(plural string, root map[string]any) map[string]any {
	second := root
	if c.one(3) {
		second = c.rootSchema()
	}
	var versions []any
	for i, schema := range []map[string]any{root, second} {
		version := map[string]any{"name": fmt.Sprintf("v%d", i+1), "served": true, "storage": i == 0,
			"schema": map[string]any{"openAPIV3Schema": schema}}
		subresources := map[string]any{}
		if !c.one(3) {
			subresources["status"] = map[string]any{}
		}
		if c.one(3) {
			subresources["scale"] = map[string]any{
				"specReplicasPath":   c.of([]any{".spec.a", ".spec.b.a", ".spec.c"}, ".a", ".status.a"),
				"statusReplicasPath": c.of([]any{".status.a", ".status.b.a"}, ".spec.a"),
				"labelSelectorPath":  c.of([]any{".status.b", ".spec.c"}, ".a", "$"),
			}
		}
		version["subresources"] = subresources
		if c.one(3) {
			version["additionalPrinterColumns"] = []any{map[string]any{"name": "A", "jsonPath": pick(c, columnPaths),
				"type": c.of([]any{"integer", "string", "boolean", "number", "date"}, "array")}}
		}
		if names := scalars(schema); len(names) > 0 && c.one(3) {
			selectable := map[string]any{"jsonPath": ".spec." + pick(c, names)}
			version["selectableFields"] = []any{selectable}
		} else if c.wrong && c.one(4) {
			version["selectableFields"] = []any{map[string]any{"jsonPath": ".spec.b.c"}}
		}
		versions = append(versions, version)
	}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + custom},
		"spec": map[string]any{"group": custom, "scope": "Namespaced",
			"names":      map[string]any{"plural": plural, "kind": "Fuzz" + plural},
			"conversion": map[string]any{"strategy": "None"}, "versions": versions},
	}
}

// of picks one of what is right or, for a wrong schema, of what is not too.
func (c *choices) of(right []any, wrong ...any) any {
	if c.wrong {
		right = slices.Concat(right, wrong)
	}
	return pick(c, right)
}

// scalars are the fields of spec that a selector may name.
func scalars(root map[string]any) (names []string) {
	properties, _ := root["properties"].(map[string]any)
	spec, _ := properties["spec"].(map[string]any)
	fields, _ := spec["properties"].(map[string]any)
	for _, name := range []string{"a", "b", "c"} {
		field, _ := fields[name].(map[string]any)
		if typ := field["type"]; typ == "string" || typ == "integer" || typ == "boolean" {
			names = append(names, name)
		}
	}
	return names
}

var columnPaths = []string{".a", ".spec.a", ".spec.b[0]", ".spec.b[*].a", ".spec", ".metadata.labels", ".spec.c['a']"}

// rootSchema is that of an object; of a wrong one something else is changed.
func (c *choices) rootSchema() map[string]any {
	root := map[string]any{"type": "object", "properties": map[string]any{
		"spec": c.schemaOf("object", 1), "status": c.schemaOf("object", 1), "a": c.schema(1),
	}}
	if c.one(8) {
		root["x-kubernetes-preserve-unknown-fields"] = true
	}
	if c.one(4) {
		c.rules(root, "object")
	}
	if c.wrong && c.one(2) {
		if edited, ok := c.edit(root, schemaType).(map[string]any); ok {
			root = edited
		}
	}
	return root
}

var fieldNames = []string{"a", "b", "c", "metadata", "kind", "x-y", "self", "a.b", "__d__", "namespace", "0"}

var typeNames = []string{"object", "array", "string", "integer", "number", "boolean", "", "object"}

func (c *choices) schema(depth int) map[string]any {
	return c.schemaOf(pick(c, typeNames), depth)
}

// schemaOf makes a structural schema of a type, "": of an integer or a text.
func (c *choices) schemaOf(typ string, depth int) map[string]any {
	s := map[string]any{}
	if typ != "" {
		s["type"] = typ
	}
	switch typ {
	case "":
		s["x-kubernetes-int-or-string"] = true
	case "object":
		c.objectSchema(s, depth)
	case "array":
		c.arraySchema(s, depth)
	case "string":
		c.sometimes(s, "format", []any{"date-time", "byte", "ipv4", "cidr", "uuid", "duration", "date"}, "none")
		c.sometimes(s, "pattern", []any{"^[a-z]+$", "^(a+)+$", ".*"}, "(")
		c.sometimes(s, "maxLength", []any{0, 1, 5}, -1)
		c.sometimes(s, "enum", []any{[]any{"a", "b"}}, []any{"a", "a"}, []any{nil, "a"}, []any{})
	case "integer", "number":
		c.sometimes(s, "format", []any{"int32", "int64", "float", "double"})
		c.sometimes(s, "minimum", []any{0, -1, 1.5, 1e300})
		c.sometimes(s, "maximum", []any{0, 10, -5, int64(1) << 53})
		c.sometimes(s, "multipleOf", []any{2, 0.5}, 0, -1)
		c.sometimes(s, "enum", []any{[]any{1, 2}}, []any{1.5}, []any{nil}, []any{"1"})
	}
	plain := len(s) == 1
	if c.one(4) {
		s["nullable"] = true
	}
	if depth > 1 && c.one(3) {
		c.defaultOf(s, typ, plain)
	}
	if c.one(5) {
		c.rules(s, typ)
	}
	return s
}

// defaultOf adds a default that the schema takes, unless it is to be wrong.
func (c *choices) defaultOf(s map[string]any, typ string, plain bool) {
	switch {
	case c.wrong && c.one(2):
		s["default"] = c.instance(s, 0)
	case s["nullable"] == true && c.one(3):
		s["default"] = nil
	case typ == "object" && s["required"] == nil && s["minProperties"] == nil && s["allOf"] == nil &&
		s["x-kubernetes-embedded-resource"] == nil:
		s["default"] = map[string]any{}
	case typ == "array":
		s["default"] = []any{}
	case plain && (typ == "string" || typ == ""):
		s["default"] = "a"
	case plain && (typ == "integer" || typ == "number"):
		s["default"] = 1
	case typ == "boolean":
		s["default"] = c.one(2)
	}
}

func (c *choices) sometimes(s map[string]any, name string, right []any, wrong ...any) {
	if c.one(6) {
		s[name] = c.of(right, wrong...)
	}
}

func (c *choices) objectSchema(s map[string]any, depth int) {
	if depth > 4 {
		s["x-kubernetes-preserve-unknown-fields"] = true
		return
	}
	names := fieldNames
	switch c.n(6) {
	case 0:
		if depth > 1 {
			s["additionalProperties"] = c.schema(depth + 1)
			return
		}
	case 1:
		s["x-kubernetes-preserve-unknown-fields"] = true
	case 2:
		if s["x-kubernetes-embedded-resource"] = true; c.one(2) {
			s["x-kubernetes-preserve-unknown-fields"] = true
		}
		if !c.wrong {
			names = names[:3]
		}
	}
	properties := map[string]any{}
	for range 1 + c.n(3) {
		properties[pick(c, names)] = c.schema(depth + 1)
	}
	s["properties"] = properties
	if c.one(4) {
		s["required"] = []any{pick(c, names)}
	}
	c.sometimes(s, "x-kubernetes-map-type", []any{"atomic", "granular"}, "set")
	c.sometimes(s, "maxProperties", []any{0, 1, 100})
	c.sometimes(s, "minProperties", []any{0, 1, 100})
	if c.one(8) {
		s["allOf"] = []any{map[string]any{pick(c, []string{"anyOf", "oneOf"}): []any{
			map[string]any{"required": []any{"a"}}, map[string]any{"required": []any{"b"}}}}}
	}
	if c.wrong && c.one(8) {
		s["anyOf"] = []any{map[string]any{"properties": map[string]any{"e": map[string]any{"type": "string"}}}}
	}
}

func (c *choices) arraySchema(s map[string]any, depth int) {
	if depth > 4 {
		s["items"] = map[string]any{"type": "string"}
		return
	}
	c.sometimes(s, "maxItems", []any{0, 1, 10})
	plain := []any{map[string]any{"type": "string"}, map[string]any{"type": "integer"},
		map[string]any{"type": "boolean"}, map[string]any{"type": "number"}}
	switch c.n(4) {
	case 0: // a map
		s["x-kubernetes-list-type"] = "map"
		s["x-kubernetes-list-map-keys"] = c.of([]any{[]any{"a"}}, []any{"a", "b"}, []any{}, []any{"c"}, []any{"a", "a"})
		key := copyOf(pick(c, plain)).(map[string]any)
		item := map[string]any{"type": "object", "required": []any{"a"},
			"properties": map[string]any{"a": key, "b": c.schema(depth + 2)}}
		if typ := key["type"]; c.one(3) && (typ == "string" || typ == "boolean") {
			delete(item, "required")
			key["default"] = map[any]any{"string": "b", "boolean": true}[typ]
		}
		s["items"] = item
	case 1:
		s["items"] = c.of(plain, c.schema(depth+1))
		s["x-kubernetes-list-type"] = "set"
	default:
		s["items"] = c.schema(depth + 1)
		c.sometimes(s, "x-kubernetes-list-type", []any{"atomic"}, "list")
	}
}

var badRules = []any{
	"self > 1", "self.a + 1", "(", "self", "self.map(x, x)", "self.a.b.c == ''", "self.matches('(')",
	"self.a == self.b", "self[0] == self[5]", "quantity(self).isInteger()", "url(self).getHost() == ''",
	"self.startsWith('a')", "self.a == null", "type(self) == string", "self.__namespace__ == ''",
	"self.sortBy(x, x) == self", "self.exists(x, self.all(y, x == y))",
}

// rules are in CEL.
func (c *choices) rules(s map[string]any, typ string) {
	right := []any{"true", "false", "self == self", "dyn(self) == dyn(self)", "1/0 == 1"}
	switch properties, _ := s["properties"].(map[string]any); typ {
	case "object":
		for _, name := range []string{"a", "b", "c"} {
			if properties[name] != nil {
				right = append(right, "has(self."+name+")", "!has(self."+name+") || self."+name+" == self."+name)
			}
		}
	case "array":
		right = append(right, "size(self) < 3", "self.all(x, x == x)", "self.exists_one(x, true)", "self[5] == self[5]")
	case "string":
		right = append(right, "self.startsWith('a')", "size(self) < 3", "self.matches('^a')", "int(self) > 1")
	case "integer":
		right = append(right, "self > 1", "self / 0 == 1", "self + 1 > self")
	}
	if s["default"] == nil && c.one(4) {
		right = []any{"self == oldSelf"}
	}
	rule := map[string]any{"rule": c.of(right, badRules...)}
	c.sometimes(rule, "message", []any{"no"}, "", "a\nb")
	c.sometimes(rule, "messageExpression", []any{"'a' + 'b'", "string(1/0)", "'a\\nb'", "''"}, "self", "1")
	c.sometimes(rule, "reason", []any{"FieldValueForbidden", "FieldValueDuplicate"}, "None")
	if c.wrong {
		c.sometimes(rule, "fieldPath", []any{".a", ".spec.a", "a", ".a[0]", ".a['b']"})
		c.sometimes(rule, "optionalOldSelf", []any{true, false})
	}
	s["x-kubernetes-validations"] = []any{rule}
}

// instance is a value of a schema, or one that is nearly so.
func (c *choices) instance(s map[string]any, depth int) any {
	if c.one(16) {
		return c.junk()
	}
	if c.one(10) || depth > 8 {
		return nil
	}
	if enum, ok := s["enum"].([]any); ok && len(enum) > 0 && !c.one(4) {
		return pick(c, enum)
	}
	switch s["type"] {
	case "object":
		return c.object(s, depth)
	case "array":
		items, _ := s["items"].(map[string]any)
		out := []any{}
		for range c.n(4) {
			out = append(out, c.instance(items, depth+1))
		}
		return out
	case "string":
		return pick(c, []any{"a", "b", "", "2026-01-01T00:00:00Z", "10.0.0.1", "AAEC", "1h", c.text()})
	case "integer":
		return pick(c, []any{0, 1, 2, 5, -1, int64(1) << 40})
	case "number":
		return pick(c, []any{0, 1, 2.5, -1, 1e20})
	case "boolean":
		return c.one(2)
	}
	return pick(c, []any{1, "a", "50%"})
}

func (c *choices) object(s map[string]any, depth int) any {
	out := map[string]any{}
	if more, ok := s["additionalProperties"].(map[string]any); ok {
		for range c.n(3) {
			out[pick(c, fieldNames)] = c.instance(more, depth+1)
		}
	}
	properties, _ := s["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if property, ok := properties[name].(map[string]any); ok && !c.one(4) {
			out[name] = c.instance(property, depth+1)
		}
	}
	if s["x-kubernetes-embedded-resource"] == true && !c.one(3) {
		out["apiVersion"], out["kind"] = "v1", "A"
		out["metadata"] = pick(c, []any{map[string]any{"name": "a"}, map[string]any{}, nil,
			map[string]any{"name": "Bad_", "labels": map[string]any{"a": nil}, "uid": 1}})
	}
	if c.one(6) {
		out[pick(c, fieldNames)] = c.junk()
	}
	return out
}
