package store

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"
)

// sizer tells how many bytes the objects of a resource have on average.
type sizer interface{ averageSize() int64 }

// sampled is how many objects of a kind are looked at for their size.
const sampled = 1000

// averageSize is how many bytes an object of the watch cache has, stored as protobuf or, of a
// custom kind, as JSON: of all objects or, where there are many, of some at random.
func (s *source) averageSize() int64 {
	s.mu.Lock()
	sample := make([]runtime.Object, 0, min(len(s.objects), sampled))
	for _, obj := range s.objects { // Go visits a map in random order
		if len(sample) == cap(sample) {
			break
		}
		sample = append(sample, obj)
	}
	s.mu.Unlock()
	if len(sample) == 0 {
		return 0
	}
	sum := int64(0)
	for _, obj := range sample {
		switch o := obj.(type) {
		case *unstructured.Unstructured:
			sum += sizeOf(o.Object)
		case interface{ Size() int }:
			sum += int64(o.Size())
		}
	}
	return sum / int64(len(sample))
}

// sizeOf is about how many bytes a value has as JSON.
func sizeOf(value any) int64 {
	const around = 4 // quotes, a colon, a comma
	sum := int64(around)
	switch v := value.(type) {
	case string:
		sum += int64(len(v))
	case []any:
		for _, element := range v {
			sum += sizeOf(element)
		}
	case map[string]any:
		for key, element := range v {
			sum += int64(len(key)+around) + sizeOf(element)
		}
	}
	return sum
}

// remembered is how many values count for the average of a kind without a watch cache, more or
// less: the last ones.
const remembered = 10_000

// weighing are the values of a kind without a watch cache on their way from and to etcd: a
// list passes all of them.
type weighing struct {
	value.Transformer

	mu     sync.Mutex
	n, sum int64
}

func (w *weighing) note(data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n++; w.n > remembered {
		w.n, w.sum = w.n/2, w.sum/2
	}
	w.sum += int64(len(data))
}

func (w *weighing) averageSize() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n == 0 {
		return 0
	}
	return w.sum / w.n
}

// TransformFromStorage implements value.Transformer.
func (w *weighing) TransformFromStorage(ctx context.Context, data []byte,
	at value.Context) (out []byte, stale bool, err error) {
	w.note(data)
	return w.Transformer.TransformFromStorage(ctx, data, at)
}

// TransformToStorage implements value.Transformer.
func (w *weighing) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	w.note(data)
	return w.Transformer.TransformToStorage(ctx, data, at)
}
