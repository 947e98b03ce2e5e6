package resourceclaim

import "testing"

func TestBaseName(t *testing.T) {
	long := "a123456789b123456789c123456789d123456789e123456789f123456789"
	for _, tt := range []struct{ pod, claim, want string }{
		{"web", "gpu", "web-gpu-"},
		{"web", long, "we-a123456789b123456789c123456789d123456789e123456789f1"},
		{long, "gpu", "a123456789b123456789c123456789d123456789e123456789f1-gp"},
	} {
		got := baseName(tt.pod, tt.claim)
		if got != tt.want || len(got) > 57 {
			t.Errorf("%s %s: %s (%d)", tt.pod, tt.claim, got, len(got))
		}
	}
}
