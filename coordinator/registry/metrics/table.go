package metrics

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// columns are metrics-server's.
var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "cpu", Type: "string", Format: "quantity"},
	{Name: "memory", Type: "string", Format: "quantity"},
	{Name: "Window", Type: "string", Format: "duration"},
}

func newTable(options runtime.Object) *metav1.Table {
	table := &metav1.Table{Rows: []metav1.TableRow{}}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = columns
	}
	return table
}

func addRow(table *metav1.Table, name string, cpu, memory resource.Quantity, window time.Duration, obj runtime.Object) {
	table.Rows = append(table.Rows, metav1.TableRow{
		Cells:  []any{name, cpu.String(), memory.String(), window.String()},
		Object: runtime.RawExtension{Object: obj},
	})
}

// ConvertToTable implements rest.TableConvertor.
func (r *nodeMetrics) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := newTable(options)
	add := func(m *metricsv1beta1.NodeMetrics) {
		addRow(table, m.Name, m.Usage[corev1.ResourceCPU], m.Usage[corev1.ResourceMemory], m.Window.Duration, m)
	}
	switch o := obj.(type) {
	case *metricsv1beta1.NodeMetrics:
		add(o)
	case *metricsv1beta1.NodeMetricsList:
		for i := range o.Items {
			add(&o.Items[i])
		}
	default:
		return nil, fmt.Errorf("print nodes: unexpected %T", obj)
	}
	return table, nil
}

// ConvertToTable implements rest.TableConvertor. A pod's row has the sums of its
// containers.
func (r *podMetrics) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := newTable(options)
	add := func(m *metricsv1beta1.PodMetrics) {
		var cpu, memory resource.Quantity
		for _, c := range m.Containers {
			cpu.Add(c.Usage[corev1.ResourceCPU])
			memory.Add(c.Usage[corev1.ResourceMemory])
		}
		addRow(table, m.Name, cpu, memory, m.Window.Duration, m)
	}
	switch o := obj.(type) {
	case *metricsv1beta1.PodMetrics:
		add(o)
	case *metricsv1beta1.PodMetricsList:
		for i := range o.Items {
			add(&o.Items[i])
		}
	default:
		return nil, fmt.Errorf("print pods: unexpected %T", obj)
	}
	return table, nil
}
