package main

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// definitions are what upstream's OpenAPI document says about types: which
// values a string has, and which fields are needed.
type definitions map[string]definition

type definition struct {
	Required   []string            `json:"required,omitempty"`
	Properties map[string]property `json:"properties,omitempty"`
}

type property struct {
	Enum []string `json:"enum,omitempty"`
}

// definitionName is the name in the OpenAPI document of a Go type.
func definitionName(t reflect.Type) string {
	host, rest, _ := strings.Cut(t.PkgPath(), "/")
	parts := strings.Split(host, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + strings.ReplaceAll(rest, "/", ".") + "." + t.Name()
}

// spot is a place in an object: a value, or a field that is not set.
type spot struct {
	path    []any // strings and indices
	typ     reflect.Type
	value   any
	present bool
	enum    []string
}

// leaves are types whose JSON form is not that of their Go fields.
var leaves = map[reflect.Type]any{
	reflect.TypeFor[metav1.Time]():                                  "2026-01-01T00:00:00Z",
	reflect.TypeFor[metav1.MicroTime]():                             "2026-01-01T00:00:00.000000Z",
	reflect.TypeFor[metav1.Duration]():                              "1m",
	reflect.TypeFor[intstr.IntOrString]():                           1,
	reflect.TypeFor[resource.Quantity]():                            "1",
	reflect.TypeFor[runtime.RawExtension]():                         map[string]any{"a": "b"},
	reflect.TypeFor[metav1.FieldsV1]():                              map[string]any{"f:data": map[string]any{}},
	reflect.TypeFor[apiextensionsv1.JSON]():                         "a",
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray]():       map[string]any{"type": "string"},
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool]():        true,
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray](): []any{"a"},
}

// field is one of a struct, by its name in JSON.
type field struct {
	name string
	typ  reflect.Type
}

func fields(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			out = append(out, fields(f.Type)...)
		case name != "":
			out = append(out, field{name, f.Type})
		}
	}
	return out
}

// spots are the places in an object that a request may change: its status, or
// all but its status.
func (k *kind) spots(o map[string]any, status bool) []spot {
	var out []spot
	k.walk(nil, k.goType, o, nil, &out)
	return slices.DeleteFunc(out, func(s spot) bool {
		return len(s.path) == 0 || (s.path[0] == "status") != status && !(status && s.path[0] == "metadata")
	})
}

func (k *kind) walk(path []any, t reflect.Type, v any, enum []string, out *[]spot) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	*out = append(*out, spot{path, t, v, true, enum})
	if _, leaf := leaves[t]; leaf {
		return
	}
	at := func(key any) []any { return append(slices.Clone(path), key) }
	switch t.Kind() {
	case reflect.Struct:
		o, _ := v.(map[string]any)
		def := k.defs[definitionName(t)]
		for _, f := range fields(t) {
			enum := def.Properties[f.name].Enum
			if value, ok := o[f.name]; ok && value != nil {
				k.walk(at(f.name), f.typ, value, enum, out)
				continue
			}
			typ := f.typ
			for typ.Kind() == reflect.Pointer {
				typ = typ.Elem()
			}
			*out = append(*out, spot{at(f.name), typ, nil, false, enum})
		}
	case reflect.Map:
		o, _ := v.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(o)) {
			k.walk(at(key), t.Elem(), o[key], nil, out)
		}
	case reflect.Slice:
		list, _ := v.([]any)
		for i, e := range list {
			k.walk(at(i), t.Elem(), e, enum, out)
		}
	}
}

// words are strings that are right somewhere and wrong elsewhere.
var words = []string{"a", "seed", "a.example.com/b", "example.com", "Always", "10.1.2.3", "fd00::1", "FD00::A",
	"010.1.2.3",
	"10.0.0.0/8", "10.1.2.3/8", "/a/b", "../a", "1Gi", "100m", "80", "http", "Bad_Name!", "UPPER", "-a", "a..b",
	"true", "In", "Exists",
	"kubernetes.io/a", "*", "text with spaces", "a\nb", "äöü"}

var numbers = []any{1, 2, 5, 10, 80, 600, 3600, 65535, 86400}

// generate makes a value of a type, fields deep inside less often.
func (k *kind) generate(r *rand.Rand, t reflect.Type, enum []string, depth int) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v, leaf := leaves[t]; leaf {
		return v
	}
	switch t.Kind() {
	case reflect.Struct:
		out := map[string]any{}
		def := k.defs[definitionName(t)]
		for _, f := range fields(t) {
			if slices.Contains(def.Required, f.name) || depth < 5 && r.IntN(3+depth) == 0 {
				out[f.name] = k.generate(r, f.typ, def.Properties[f.name].Enum, depth+1)
			}
		}
		return out
	case reflect.Map:
		if depth > 5 {
			return map[string]any{}
		}
		return map[string]any{words[r.IntN(3)]: k.generate(r, t.Elem(), nil, depth+1)}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "AAEC"
		}
		if depth > 5 {
			return []any{}
		}
		return []any{k.generate(r, t.Elem(), enum, depth+1)}
	case reflect.Bool:
		return r.IntN(4) > 0
	case reflect.String:
		if len(enum) > 0 && r.IntN(10) > 0 {
			return enum[r.IntN(len(enum))]
		}
		if r.IntN(2) == 0 {
			return "a"
		}
		return words[r.IntN(len(words))]
	case reflect.Float32, reflect.Float64:
		return 1.5
	}
	return numbers[r.IntN(len(numbers))]
}

// edit is a change of one place.
type edit struct {
	path   []any
	remove bool
	value  any
	how    string
}

// change makes an edit of a spot.
func (k *kind) change(r *rand.Rand, s spot) edit {
	e := edit{path: s.path}
	if !s.present {
		e.how, e.value = "add", k.generate(r, s.typ, s.enum, 0)
		if r.IntN(3) > 0 {
			return e
		}
		s.value, s.present = e.value, true
	}
	hows := []string{"drop", "null", "wrong type", "empty", "generate"}
	switch s.value.(type) {
	case map[string]any:
		hows = append(hows, "unknown field", "unknown field", "bad key")
	case []any:
		hows = append(hows, "duplicate", "duplicate", "many", "null element")
	case string:
		hows = append(hows, "other", "other", "other", "bad name", "too long", "word", "word", "space")
	case bool:
		hows = append(hows, "other", "other")
	case float64, int:
		hows = append(hows, "zero", "negative", "huge", "other", "other", "beyond")
	}
	e.how = hows[r.IntN(len(hows))]
	switch e.how {
	case "drop":
		e.remove = true
	case "null":
		e.value = nil
	case "generate":
		e.value = k.generate(r, s.typ, s.enum, 0)
	case "empty", "zero":
		e.value = emptyOf(s.value)
	case "wrong type":
		e.value = []any{true, "a", map[string]any{"a": "b"}, []any{1}, 1.5}[r.IntN(5)]
	case "unknown field", "bad key":
		o := maps.Clone(s.value.(map[string]any))
		o[map[string]string{"unknown field": "unknownField", "bad key": "-Bad key!"}[e.how]] = "a"
		e.value = o
	case "duplicate":
		list := s.value.([]any)
		e.value = list
		if len(list) > 0 {
			e.value = append(slices.Clone(list), list[r.IntN(len(list))])
		}
	case "many":
		list := s.value.([]any)
		out := slices.Clone(list)
		for len(list) > 0 && len(out) < 300 {
			out = append(out, list[0])
		}
		e.value = out
	case "null element":
		e.value = append(slices.Clone(s.value.([]any)), nil)
	case "bad name":
		e.value = "Bad_Name!"
	case "space":
		e.value = s.value.(string) + " "
	case "too long":
		e.value = strings.Repeat("a", []int{64, 254, 1025, 5000}[r.IntN(4)])
	case "word":
		e.value = words[r.IntN(len(words))]
	case "negative":
		e.value = -1
	case "huge":
		e.value = 2147483647
	case "beyond":
		e.value = json.RawMessage([]string{"2147483648", "9223372036854775807", "9223372036854775808"}[r.IntN(3)])
	case "other":
		e.value = other(r, s)
	}
	return e
}

func emptyOf(v any) any {
	switch v.(type) {
	case map[string]any:
		return map[string]any{}
	case []any:
		return []any{}
	case string:
		return ""
	case bool:
		return false
	}
	return 0
}

// other is another value that may be right.
func other(r *rand.Rand, s spot) any {
	switch v := s.value.(type) {
	case bool:
		return !v
	case string:
		if len(s.enum) > 0 {
			return s.enum[r.IntN(len(s.enum))]
		}
		if _, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return "2026-02-02T00:00:00Z"
		}
		if s.typ == reflect.TypeFor[resource.Quantity]() {
			return []string{"0", "-1", "1.5", "0.0001", "9223372036854775807", "9223372036854775808", "1e3", "5Gi",
				"3", "100u"}[r.IntN(10)]
		}
		return v + "x"
	case float64:
		return v + 1
	case int:
		return []any{0, "25%", "101%", "-1%", "http"}[r.IntN(5)]
	}
	return "a"
}

// apply returns a copy of an object with an edit in it.
func apply(v any, path []any, e edit) any {
	if len(path) == 0 {
		return e.value
	}
	switch key := path[0].(type) {
	case string:
		o, _ := v.(map[string]any)
		if o = maps.Clone(o); o == nil {
			o = map[string]any{}
		}
		if len(path) == 1 && e.remove {
			delete(o, key)
		} else {
			o[key] = apply(o[key], path[1:], e)
		}
		return o
	case int:
		list, _ := v.([]any)
		list = slices.Clone(list)
		if key >= len(list) {
			return list
		}
		if len(path) == 1 && e.remove {
			return slices.Delete(list, key, key+1)
		}
		list[key] = apply(list[key], path[1:], e)
		return list
	}
	return v
}
