package gated

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Fields are those of one kind that are off.
type Fields struct{ groups [][]path }

// Of returns the fields of a resource ("group/resource") that are off. t is the
// struct of its kind.
func Of(resource string, t reflect.Type) (Fields, error) {
	var out Fields
	add := func(g gate, below string) error {
		var group []path
		for _, text := range g.fields {
			p, err := compile(t, below+text)
			if err != nil {
				return fmt.Errorf("gate %s of %s: %w", g.feature, resource, err)
			}
			group = append(group, p)
		}
		out.groups = append(out.groups, group)
		return nil
	}
	if spec, ok := podSpecs[resource]; ok {
		for _, g := range inPods {
			if err := add(g, spec+"."); err != nil {
				return Fields{}, err
			}
		}
	}
	for _, g := range inObjects {
		if !slices.Contains(g.resources, resource) {
			continue
		}
		if err := add(g, ""); err != nil {
			return Fields{}, err
		}
	}
	return out, nil
}

// Drop clears the fields of obj that are off, but for those of features that old
// uses already. Both are pointers to the struct that Of was given; old is nil for
// a create.
func (f Fields) Drop(obj, old any) {
	for _, group := range f.groups {
		if old != nil && slices.ContainsFunc(group, func(p path) bool { return p.used(reflect.ValueOf(old)) }) {
			continue
		}
		for _, p := range group {
			p.drop(reflect.ValueOf(obj))
		}
	}
}

// path leads from a struct to one of its fields, through lists and maps.
type path []step

type step struct {
	// field is the index of a struct's field; nil: each element of a list or map.
	field []int
	// vanishes: a pointer that is dropped when what it points to has become empty.
	vanishes bool
}

// compile finds the fields that text names, from t on.
func compile(t reflect.Type, text string) (path, error) {
	var out path
	for name := range strings.SplitSeq(text, ".") {
		name, each := strings.CutSuffix(name, "[]")
		name, vanishes := strings.CutSuffix(name, "?")
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s: %s has no fields", text, t)
		}
		f, ok := jsonField(t, name)
		if !ok {
			return nil, fmt.Errorf("%s: %s has no field %q", text, t, name)
		}
		t = f.Type
		if vanishes && t.Kind() != reflect.Pointer {
			return nil, fmt.Errorf("%s: %s is no pointer", text, name)
		}
		out = append(out, step{field: f.Index, vanishes: vanishes})
		if !each {
			continue
		}
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
			return nil, fmt.Errorf("%s: %s is neither list nor map", text, name)
		}
		t = t.Elem()
		out = append(out, step{})
	}
	return out, nil
}

// jsonField finds a struct's field by its JSON name, in embedded structs too.
func jsonField(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// used tells whether the field has a value anywhere in v.
func (p path) used(v reflect.Value) bool {
	if len(p) == 0 {
		return !v.IsZero()
	}
	v, ok := reach(v)
	if !ok {
		return false
	}
	rest := p[1:]
	switch {
	case p[0].field != nil:
		return rest.used(v.FieldByIndex(p[0].field))
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			if rest.used(v.Index(i)) {
				return true
			}
		}
	default:
		for each := v.MapRange(); each.Next(); {
			if rest.used(each.Value()) {
				return true
			}
		}
	}
	return false
}

// drop clears the field wherever it is in v.
func (p path) drop(v reflect.Value) {
	if len(p) == 0 {
		v.SetZero()
		return
	}
	v, ok := reach(v)
	if !ok {
		return
	}
	rest := p[1:]
	switch {
	case p[0].field != nil:
		f := v.FieldByIndex(p[0].field)
		if !rest.used(f) {
			return
		}
		rest.drop(f)
		if p[0].vanishes && f.Elem().IsZero() {
			f.SetZero()
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			rest.drop(v.Index(i))
		}
	default:
		for each := v.MapRange(); each.Next(); { // setting keys that are there is allowed
			if !rest.used(each.Value()) {
				continue
			}
			copied := reflect.New(v.Type().Elem()).Elem()
			copied.Set(each.Value())
			rest.drop(copied)
			v.SetMapIndex(each.Key(), copied)
		}
	}
}

// reach follows pointers; false: they end in nothing.
func reach(v reflect.Value) (reflect.Value, bool) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return v, false
		}
		v = v.Elem()
	}
	return v, true
}
