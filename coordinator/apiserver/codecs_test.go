package apiserver

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// writes counts how often it is written to, and how much at once at most.
type writes struct {
	bytes.Buffer
	most int
}

func (w *writes) Write(p []byte) (int, error) {
	w.most = max(w.most, len(p))
	return w.Buffer.Write(p)
}

// TestListsAreEncodedByObject: of a list no more than one object at a time is encoded, in both
// forms that clients ask for.
func TestListsAreEncodedByObject(t *testing.T) {
	scheme, err := kind.NewScheme(nil)
	if err != nil {
		t.Fatal(err)
	}
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, name := range []string{"a", "b", "c", "d"} {
		list.Items = append(list.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
			BinaryData: map[string][]byte{"k": make([]byte, 10_000)}})
	}
	served := versioned{newCodecs(scheme)}
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		info, ok := runtime.SerializerInfoForMediaType(served.SupportedMediaTypes(), mediaType)
		if !ok {
			t.Fatalf("%s is not served", mediaType)
		}
		var w writes
		if err := served.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(list, &w); err != nil {
			t.Fatal(err)
		}
		if whole := w.Len(); w.most > whole/3 {
			t.Errorf("%s: %d of %d bytes were written at once", mediaType, w.most, whole)
		}
		back, err := runtime.Decode(newCodecs(scheme).UniversalDeserializer(), w.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if got := back.(*corev1.ConfigMapList); len(got.Items) != 4 || got.Items[3].Name != "d" ||
			got.ResourceVersion != "7" {
			t.Errorf("%s: came back as %v", mediaType, got)
		}
	}
}
