package openapi

import "testing"

// Server-side apply takes any scalar where a format is given, as upstream: what is wrong
// with it is told by the decoder.
func TestModelsHaveFormats(t *testing.T) {
	models, err := LoadModels()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"io.k8s.apimachinery.pkg.apis.meta.v1.Time":          "date-time",
		"io.k8s.apimachinery.pkg.util.intstr.IntOrString":    "int-or-string",
		"io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime":     "date-time",
		"io.k8s.apimachinery.pkg.runtime.RawExtension":       "",
		"io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector": "",
	} {
		if m := models[name]; m == nil || m.Format != want {
			t.Errorf("%s: %+v, want the format %q", name, m, want)
		}
	}
}
