package kind

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// table prints objects of the kind; a kind without columns shows name and age.
func (o *Of[T]) table() rest.TableConvertor {
	if o.Row == nil {
		return rest.NewDefaultTableConvertor(schema.GroupResource{Group: o.GroupVersion.Group, Resource: o.Resource})
	}
	return tableOf[T]{of: o}
}

type tableOf[T any] struct{ of *Of[T] }

// ConvertToTable implements rest.TableConvertor for one object or a list.
func (c tableOf[T]) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if opt, ok := options.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		table.ColumnDefinitions = c.of.Columns
	}
	if t, ok := any(obj).(*T); ok {
		table.Rows = []metav1.TableRow{c.row(t)}
		if m, err := meta.CommonAccessor(obj); err == nil {
			table.ResourceVersion = m.GetResourceVersion()
		}
		return table, nil
	}
	list, err := meta.ListAccessor(obj)
	if err != nil {
		return nil, fmt.Errorf("print %s: unexpected %T", c.of.Resource, obj)
	}
	table.ResourceVersion = list.GetResourceVersion()
	table.Continue = list.GetContinue()
	table.RemainingItemCount = list.GetRemainingItemCount()
	table.Rows = make([]metav1.TableRow, 0, meta.LenList(obj))
	err = meta.EachListItem(obj, func(item runtime.Object) error {
		table.Rows = append(table.Rows, c.row(typed[T](item)))
		return nil
	})
	return table, err
}

func (c tableOf[T]) row(t *T) metav1.TableRow {
	row := metav1.TableRow{Cells: c.of.Row(t), Object: runtime.RawExtension{Object: object(t)}}
	if c.of.RowConditions != nil {
		row.Conditions = c.of.RowConditions(t)
	}
	return row
}
