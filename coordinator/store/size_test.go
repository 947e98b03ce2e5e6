package store

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// TestAverageSize: the size of objects is what they are stored with, more or less, built-in
// ones and custom ones; where there are many it is that of some of both kinds.
func TestAverageSize(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	typed := func(data string) runtime.Object {
		m := object("m", "1")
		m.Data = map[string]string{"k": data}
		return m
	}
	custom := func(data string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{"kind": "Widget",
			"spec": map[string]any{"parts": []any{"a", int64(1), true, nil, map[string]any{"k": data}}}}}
	}
	for _, tt := range []struct {
		name       string
		objects    []runtime.Object
		from, most int64
	}{
		{"none", nil, 0, 0},
		{"built-in", []runtime.Object{typed(large), typed("")}, 50_000, 51_000},
		{"custom", []runtime.Object{custom(large), custom("")}, 50_000, 51_000},
		{"without a size", []runtime.Object{&runtime.Unknown{}}, 0, 100},
	} {
		s := newSource(&etcdOf{}, nil, func() runtime.Object { return &corev1.ConfigMap{} })
		s.objects = map[types.NamespacedName]runtime.Object{}
		for i, obj := range tt.objects {
			s.objects[types.NamespacedName{Name: string(rune('a' + i))}] = obj
		}
		if got := s.averageSize(); got < tt.from || got > tt.most {
			t.Errorf("%s: %d, want %d to %d", tt.name, got, tt.from, tt.most)
		}
	}
	s := newSource(&etcdOf{}, nil, func() runtime.Object { return &corev1.ConfigMap{} })
	s.objects = map[types.NamespacedName]runtime.Object{}
	for i := range 20 * sampled {
		data := ""
		if i < 10*sampled {
			data = large
		}
		s.objects[types.NamespacedName{Name: "m" + string(rune(i))}] = typed(data)
	}
	if got := s.averageSize(); got < 40_000 || got > 60_000 {
		t.Errorf("of many: %d, want about 50000", got)
	}
}

// TestAverageSizeOfEvents: of kinds without a watch cache the size is that of what was read and
// written last.
func TestAverageSizeOfEvents(t *testing.T) {
	w := &weighing{Transformer: identity.NewEncryptCheckTransformer()}
	if got := w.averageSize(); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
	at := value.DefaultContext("key")
	for range 2 * remembered {
		if _, err := w.TransformToStorage(t.Context(), make([]byte, 100), at); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.averageSize(); got != 100 {
		t.Errorf("written: %d", got)
	}
	for range 4 * remembered {
		if _, _, err := w.TransformFromStorage(t.Context(), make([]byte, 1000), at); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.averageSize(); got < 900 || got > 1000 {
		t.Errorf("read: %d, want nearly 1000", got)
	}
}
