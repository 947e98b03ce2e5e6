package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// componentStatus tells whether the parts of the control plane are well. It is
// asked when somebody reads it, and nothing is stored.
func componentStatus() kind.Kind {
	return kind.Of[corev1.ComponentStatus]{
		Names: kind.Names{GroupVersion: groupVersion, Resource: "componentstatuses", Singular: "componentstatus",
			ShortNames: []string{"cs"}, ClusterScoped: true, List: &corev1.ComponentStatusList{}},
		Rest: func(env *kind.Env, _ kind.Stores) rest.Storage { return componentStatusREST{env} },
	}.Kind()
}

type componentStatusREST struct{ env *kind.Env }

var (
	_ rest.Lister             = componentStatusREST{}
	_ rest.Getter             = componentStatusREST{}
	_ rest.ShortNamesProvider = componentStatusREST{}
)

func (r componentStatusREST) New() runtime.Object     { return &corev1.ComponentStatus{} }
func (r componentStatusREST) NewList() runtime.Object { return &corev1.ComponentStatusList{} }
func (r componentStatusREST) Destroy()                {}
func (r componentStatusREST) NamespaceScoped() bool   { return false }
func (r componentStatusREST) GetSingularName() string { return "componentstatus" }
func (r componentStatusREST) ShortNames() []string    { return []string{"cs"} }

// Get asks one component.
func (r componentStatusREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	ask := r.env.Components[name]
	if ask == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("componentstatus"), name)
	}
	return statusOf(ctx, name, ask), nil
}

// List asks all that the selectors do not leave out, at once.
func (r componentStatusREST) List(ctx context.Context,
	options *metainternalversion.ListOptions) (runtime.Object, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r.env.Components)) {
		if selected(options, name) {
			names = append(names, name)
		}
	}
	list := &corev1.ComponentStatusList{Items: make([]corev1.ComponentStatus, len(names))}
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { list.Items[i] = *statusOf(ctx, name, r.env.Components[name]) })
	}
	all.Wait()
	return list, nil
}

// selected tells whether selectors leave a component: it has a name and no labels.
func selected(options *metainternalversion.ListOptions, name string) bool {
	if options == nil {
		return true
	}
	return (options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set{})) &&
		(options.FieldSelector == nil || options.FieldSelector.Matches(fields.Set{"metadata.name": name}))
}

func statusOf(ctx context.Context, name string, ask func(context.Context) error) *corev1.ComponentStatus {
	c := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := ask(ctx); err != nil {
		c.Status, c.Message, c.Error = corev1.ConditionFalse, "", err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name},
		Conditions: []corev1.ComponentCondition{c}}
}

var componentColumns = []metav1.TableColumnDefinition{
	kind.NameColumn(),
	kind.Column("Status", "string", "Status of the component conditions"),
	kind.Column("Message", "string", "Message of the component conditions"),
	kind.Column("Error", "string", "Error of the component conditions"),
}

// ConvertToTable implements rest.TableConvertor.
func (r componentStatusREST) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = componentColumns
	}
	switch o := obj.(type) {
	case *corev1.ComponentStatus:
		table.Rows = []metav1.TableRow{componentRow(o)}
	case *corev1.ComponentStatusList:
		table.Rows = make([]metav1.TableRow, 0, len(o.Items))
		for i := range o.Items {
			table.Rows = append(table.Rows, componentRow(&o.Items[i]))
		}
	default:
		return nil, fmt.Errorf("print componentstatuses: unexpected %T", obj)
	}
	return table, nil
}

func componentRow(s *corev1.ComponentStatus) metav1.TableRow {
	cells := []any{s.Name, "Unknown", "", ""}
	for _, c := range s.Conditions {
		if c.Type == corev1.ComponentHealthy {
			cells[1], cells[2], cells[3] = "Unhealthy", c.Message, c.Error
			if c.Status == corev1.ConditionTrue {
				cells[1] = "Healthy"
			}
			break
		}
	}
	return metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: s}}
}
