package kindtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// asked is one request.
type asked struct {
	*runtime.Scheme
	ctx     context.Context
	kind    kind.Kind
	storage rest.Storage
	body    string
}

func (r *asked) create() (runtime.Object, error) {
	obj := r.kind.NewObject()
	if _, stored := r.storage.(rest.Getter); stored { // not a review, which has no name
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		m.SetName("a")
		if !r.kind.KindNames().ClusterScoped {
			m.SetNamespace("default")
		}
	}
	obj, err := r.merged(obj)
	if err != nil {
		return nil, err
	}
	return r.storage.(rest.Creater).Create(r.ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
}

// update writes what exists; upsert says that the request, as those of server-side
// apply do, makes what does not.
func (r *asked) update(upsert bool) (runtime.Object, error) {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		return r.merged(old)
	})
	obj, _, err := r.storage.(rest.Updater).Update(r.ctx, r.name(), info,
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, upsert, &metav1.UpdateOptions{})
	return obj, err
}

func (r *asked) delete(now bool) (runtime.Object, error) {
	options := &metav1.DeleteOptions{}
	if now {
		options = metav1.NewDeleteOptions(0)
	}
	d := r.storage.(rest.GracefulDeleter)
	obj, _, err := d.Delete(r.ctx, r.name(), rest.ValidateAllObjectFunc, options)
	return obj, err
}

// table returns the lines of all objects as kubectl shows them.
func (r *asked) table() ([]string, error) {
	l := r.storage.(rest.Lister)
	list, err := l.List(r.ctx, &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	table, err := l.ConvertToTable(r.ctx, list, nil)
	if err != nil {
		return nil, err
	}
	var head []string
	for _, c := range table.ColumnDefinitions {
		head = append(head, c.Name)
	}
	lines := []string{strings.Join(head, " | ")}
	for _, row := range table.Rows {
		var cells []string
		for _, c := range row.Cells {
			cells = append(cells, fmt.Sprint(c))
		}
		for _, c := range row.Conditions {
			cells = append(cells, fmt.Sprintf("%s %s, %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
		lines = append(lines, strings.Join(cells, " | "))
	}
	return lines, nil
}

// selected returns the names that a field selector takes.
func (r *asked) selected(text string) ([]string, error) {
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return nil, err
	}
	gvks, _, err := r.ObjectKinds(r.kind.NewObject())
	if err != nil {
		return nil, err
	}
	gvk := r.kind.KindNames().GroupVersion.WithKind(gvks[0].Kind)
	selector, err = selector.Transform(func(label, value string) (string, string, error) {
		return r.ConvertFieldLabel(gvk, label, value)
	})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	list, err := r.storage.(rest.Lister).List(r.ctx, &internalversion.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, err
	}
	names := []string{}
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		m, err := meta.Accessor(obj)
		if err == nil {
			names = append(names, m.GetName())
		}
		return err
	})
	return []string{strings.Join(names, " ")}, err
}

// name is that of the object asked for: "a", unless the body says otherwise.
func (r *asked) name() string {
	var named struct{ Metadata struct{ Name string } }
	if err := yaml.Unmarshal([]byte(r.body), &named); err != nil || named.Metadata.Name == "" {
		return "a"
	}
	return named.Metadata.Name
}

// merged returns an object with the body merged into it, decoded as the server
// does: what is unknown is refused, what is unset has its default.
func (r *asked) merged(obj runtime.Object) (runtime.Object, error) {
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(r.body), &given); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	data, err := json.Marshal(merge(have, given))
	if err != nil {
		return nil, err
	}
	out := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
	if err := yaml.UnmarshalStrict(data, out); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	r.Default(out)
	return out, nil
}

// merge is a JSON merge patch (RFC 7386).
func merge(into, from map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for k, v := range from {
		if v == nil {
			delete(into, k)
		} else if inner, ok := v.(map[string]any); ok {
			had, _ := into[k].(map[string]any)
			into[k] = merge(had, inner)
		} else {
			into[k] = v
		}
	}
	return into
}

// show prints an object, a line for each of its fields that is asked for. What differs
// with each run is left out.
func (p *player) show(obj runtime.Object, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	if m, ok := all["metadata"].(map[string]any); ok {
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp"} {
			delete(m, name)
		}
	}
	if status, ok := obj.(*metav1.Status); ok {
		return []string{status.Status}, nil
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(p.fields) > 0 && !slices.Contains(p.fields, name) {
			continue
		}
		text, err := json.Marshal(all[name])
		if err != nil {
			return nil, err
		}
		if s := string(text); s != "{}" && s != "null" {
			lines = append(lines, name+": "+uid.ReplaceAllString(s, "UID"))
		}
	}
	return lines, nil
}

var uid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// repeated names the causes that a client is told more than once, which the message
// does not show.
func repeated(err error) (out []string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	seen := map[metav1.StatusCause]int{}
	for _, c := range status.Status().Details.Causes {
		if seen[c]++; seen[c] > 1 {
			out = append(out, fmt.Sprintf("again: %s (%s)", c.Field, c.Type))
		}
	}
	return out
}

// refusal is what a client is told.
func refusal(err error) string {
	text := uid.ReplaceAllString(err.Error(), "UID")
	if reason := apierrors.ReasonForError(err); reason != "" {
		return string(reason) + ": " + text
	}
	return text
}
