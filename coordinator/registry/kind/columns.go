package kind

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Column declares one table column; typ is "string", "integer" or "boolean".
func Column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

// Wide declares a column that only `kubectl get -o wide` shows.
func Wide(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description, Priority: 1}
}

// NameColumn and AgeColumn are the two that every built-in kind prints; a Row
// holds a cell for each of its columns, these included.
func NameColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
}

// AgeColumn: see NameColumn.
func AgeColumn() metav1.TableColumnDefinition {
	return Column("Age", "string", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
}

// Age prints the time since t as kubectl does ("5m", "<unknown>").
func Age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

// ContainerCells returns the comma-joined names and images of containers, for
// the wide columns of workloads.
func ContainerCells(containers []corev1.Container) (names, images string) {
	n, i := make([]string, len(containers)), make([]string, len(containers))
	for k := range containers {
		n[k], i[k] = containers[k].Name, containers[k].Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
