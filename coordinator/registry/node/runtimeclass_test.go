package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestValidate covers RTC-1..RTC-3.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name  string
		class nodev1.RuntimeClass
		want  string
	}{
		{"valid", nodev1.RuntimeClass{Handler: "kata-fc"}, ""},
		{"no-handler", nodev1.RuntimeClass{}, "handler: Required value"},
		{"bad-handler", nodev1.RuntimeClass{Handler: "a.b"},
			`handler: Invalid value: "a.b": must not contain dots`},
		{"overhead",
			nodev1.RuntimeClass{Handler: "x",
				Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"cpu": resource.MustParse("-1")}}},
			`overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0`},
		{"tolerations",
			nodev1.RuntimeClass{Handler: "x", Scheduling: &nodev1.Scheduling{Tolerations: []corev1.Toleration{
				{Key: "k", Operator: corev1.TolerationOpExists}, {Key: "k", Operator: corev1.TolerationOpExists},
			}}}, `scheduling.tolerations[1]: Duplicate value: {"Key":"k","Operator":"Exists","Value":"","Effect":"","TolerationSeconds":null}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if errs := validate(&c.class); len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
