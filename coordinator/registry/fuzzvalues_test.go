package registry_test

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// schemaType is recursive.
var schemaType = reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()

// leafType has a form in JSON that is not that of its Go fields.
func leafType(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[metav1.Duration](),
		reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[resource.Quantity](),
		reflect.TypeFor[runtime.RawExtension](), reflect.TypeFor[metav1.FieldsV1](),
		reflect.TypeFor[apiextensionsv1.JSON](), reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray](),
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool](),
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray]():
		return true
	}
	return false
}

// jsonField is a field of a struct by its name in JSON.
type jsonField struct {
	name string
	typ  reflect.Type
}

func jsonFields(t reflect.Type) (out []jsonField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			out = append(out, jsonFields(f.Type)...)
		case name != "":
			out = append(out, jsonField{name, f.Type})
		}
	}
	return out
}

func pointed(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// typeOf is the type of what t has below a name or, in a list, an index; nil: nobody
// knows.
func typeOf(t reflect.Type, name string) reflect.Type {
	t = pointed(t)
	if t == nil || leafType(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		for _, f := range jsonFields(t) {
			if f.name == name {
				return f.typ
			}
		}
	case reflect.Map, reflect.Slice:
		return t.Elem()
	}
	return nil
}

// edit changes one place in a value of a type.
func (c *choices) edit(v any, t reflect.Type) any {
	t = pointed(t)
	if c.one(12) {
		return c.junk()
	}
	switch have := v.(type) {
	case map[string]any:
		return c.editMap(have, t)
	case []any:
		if len(have) == 0 || c.one(4) {
			return append(have, c.value(typeOf(t, ""), 0))
		}
		i := c.n(len(have))
		switch c.n(6) {
		case 0:
			return slices.Delete(have, i, i+1)
		case 1:
			return append(have, copyOf(have[i]))
		}
		have[i] = c.edit(have[i], typeOf(t, ""))
		return have
	}
	if t == nil || c.one(3) {
		return c.junk()
	}
	return c.value(t, 0)
}

// otherNames are names of fields that an object may not have.
var otherNames = []string{
	"a", "", "x-kubernetes-a", "spec", "status", "metadata", "example.com/a", strings.Repeat("k", 300),
}

func (c *choices) editMap(have map[string]any, t reflect.Type) any {
	var name string
	switch names := slices.Sorted(maps.Keys(have)); {
	case t != nil && t.Kind() == reflect.Struct && !leafType(t) && (c.one(2) || len(names) == 0):
		fields := jsonFields(t)
		if len(fields) == 0 {
			return c.junk()
		}
		name = pick(c, fields).name
	case len(names) == 0 || c.one(4):
		name = pick(c, otherNames)
	default:
		name = pick(c, names)
	}
	old, has := have[name]
	switch {
	case !has:
		have[name] = c.value(typeOf(t, name), 0)
	case c.one(8):
		delete(have, name)
	default:
		have[name] = c.edit(old, typeOf(t, name))
	}
	return have
}

// value makes one of a type; fields deep inside less often.
func (c *choices) value(t reflect.Type, depth int) any {
	t = pointed(t)
	if t == nil || c.one(30) {
		return c.junk()
	}
	if leafType(t) {
		return c.leaf(t, depth)
	}
	switch t.Kind() {
	case reflect.Struct:
		out := map[string]any{}
		for _, f := range jsonFields(t) {
			odds := 3 + 2*depth
			if t == schemaType {
				odds = 6 + 4*depth // it has 40 fields
			}
			if depth < 6 && c.one(odds) {
				out[f.name] = c.value(f.typ, depth+1)
			}
		}
		if t == schemaType && !c.one(4) {
			out["type"] = pick(c, []string{"object", "array", "string", "integer", "number", "boolean"})
		}
		return out
	case reflect.Map:
		out := map[string]any{}
		for range c.n(3) {
			if depth < 6 {
				out[c.text()] = c.value(t.Elem(), depth+1)
			}
		}
		return out
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return pick(c, []any{"AAEC", "", "=", "bm90IGEga2V5"})
		}
		out := []any{}
		for range c.n(3) {
			if depth < 6 {
				out = append(out, c.value(t.Elem(), depth+1))
			}
		}
		return out
	case reflect.Bool:
		return c.one(2)
	case reflect.String:
		return c.text()
	}
	return pick(c, numbers)
}

func (c *choices) leaf(t reflect.Type, depth int) any {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return pick(c, []any{"2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z", "0001-01-01T00:00:00Z",
			"9999-12-31T23:59:59Z", "2026-01-01T00:00:00+99:99", ""})
	case reflect.TypeFor[metav1.Duration]():
		return pick(c, []any{"1m", "0s", "-1h", "9999999h", "1"})
	case reflect.TypeFor[intstr.IntOrString]():
		return pick(c, []any{1, 0, -1, 80, "50%", "101%", "-5%", "http", "%", "99999999999%"})
	case reflect.TypeFor[resource.Quantity]():
		return pick(c, []any{"1", "0", "-1", "1Gi", "100m", "1n", "9223372036854775807", "9223372036854775808", "1E30",
			"1e-30", "0.0000000001", 1, 1.5, "1e1000", "-9223372036854775809Ei"})
	case reflect.TypeFor[metav1.FieldsV1]():
		return pick(c, []any{map[string]any{}, map[string]any{"f:data": map[string]any{}},
			map[string]any{"f:": nil, ".": 1}})
	case reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray](),
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool]():
		return pick(c, []any{true, false, c.value(schemaType, depth+1), []any{c.value(schemaType, depth+2)}})
	case reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray]():
		return pick(c, []any{[]any{"a"}, c.value(schemaType, depth+1)})
	}
	return c.junk()
}

var numbers = []any{1, 0, -1, 2, 3, 80, 65535, 65536, 86400, math.MaxInt32, math.MinInt32, int64(math.MaxInt64),
	int64(math.MinInt64), uint64(math.MaxUint64), 1.5, 1e300}

func (c *choices) text() string { return pick(c, texts) }

// texts are right somewhere and wrong elsewhere.
var texts = []string{
	"a", "b", "seed", "", " ", "a.example.com/b", "example.com", "Always", "10.1.2.3", "fd00::1", "::ffff:1.2.3.4",
	"010.1.2.3", "10.0.0.0/8", "10.1.2.3/33", "::/0", "/a/b", "../a", "..", "/", "1Gi", "-1", "80", "http",
	"Bad_Name!", "UPPER", "-a", "a..b", "true", "In", "Exists", "kubernetes.io/a", "*", "a\nb", "äöü", "\x00",
	"self.a", "self == oldSelf", "true", "1/0", "object.spec.x", "size(self) > 1", "device.driver",
	"self.all(x, self.all(y, x == y))", "(", "[a-", "^(a+)+$", "{.spec.a}", ".spec.replicas", "$.a[*]",
	".a['b'][?(@.c==1)]", "{range .a}", "*/5 * * * *", "@every 1s", "TZ=UTC 0 0 * * *", "0 0 31 2 *", "%s%n",
	"https://127.0.0.1:1/x", "https://[::1", "http://a b", "Object{}", "JSONPatch{op: \"add\"}", "object", "array",
	"string", "integer", "date-time", "byte", "int-or-string", "RollingUpdate", "Recreate", "ClusterIP",
	"ExternalName", "TCP", "spec", "status", strings.Repeat("a", 64), strings.Repeat("a", 254),
	strings.Repeat("a.", 130), strings.Repeat("long", 5000),
}

// junk is a value of any type.
func (c *choices) junk() any {
	switch c.n(8) {
	case 0:
		return nil
	case 1:
		return c.one(2)
	case 2:
		return pick(c, numbers)
	case 3:
		return []any{c.text(), nil, map[string]any{}}
	case 4:
		return map[string]any{c.text(): c.text()}
	case 5:
		return pick(c, []any{[]any{}, map[string]any{}, []any{nil}, map[string]any{"a": nil}})
	}
	return c.text()
}
