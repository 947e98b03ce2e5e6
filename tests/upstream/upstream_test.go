package upstream

import "testing"

func TestRequireStaging(t *testing.T) {
	got := string(requireStaging([]byte("require (\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.1.0\n\tk8s.io/utils v0.0.0-2026\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n")))
	if want := "require (\n\tk8s.io/api v0.36.3\n\tk8s.io/klog/v2 v2.1.0\n\tk8s.io/utils v0.0.0-2026\n)\n\n"; got != want {
		t.Errorf("go.mod %q, want %q", got, want)
	}
}
