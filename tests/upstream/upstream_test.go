package upstream

import "testing"

func TestRequireStaging(t *testing.T) {
	const module = `require (
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.1.0
	k8s.io/utils v0.0.0-2026
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
)
`
	const want = `require (
	k8s.io/api v0.36.3
	k8s.io/klog/v2 v2.1.0
	k8s.io/utils v0.0.0-2026
)

`
	if got := string(requireStaging([]byte(module))); got != want {
		t.Errorf("go.mod %q, want %q", got, want)
	}
}

func TestWithoutNested(t *testing.T) {
	const module = `require (
	a.b/c v0.93.0
)

replace (
	a.b/c => ./pkg/c
	a.b/d => a.b/e v1.0.0
	a.b/f => ./here
)

replace a.b/g => ./pkg/g
`
	const want = `require (
	a.b/c v0.93.0
)

replace (
	a.b/d => a.b/e v1.0.0
	a.b/f => ./here
)

`
	here := func(dir string) bool { return dir == "./here" }
	if got := string(withoutNested([]byte(module), here)); got != want {
		t.Errorf("go.mod %q, want %q", got, want)
	}
}
