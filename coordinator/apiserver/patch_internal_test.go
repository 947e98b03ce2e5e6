package apiserver

import "testing"

func TestPanickedIn(t *testing.T) {
	const pkg = "example.com/a"
	for _, c := range []struct {
		name   string
		reason any
		want   bool
	}{
		{"its own", "text\ngoroutine 1 [running]:\nb.f()\n\tf.go:1\npanic({0x1, 0x2})\n\tp.go:1\n" +
			"example.com/a.f({0x1, 0x2})\n\tf.go:1\n", true},
		{"below the runtime", "text\nb.f()\n\tf.go:1\npanic(...)\n\tp.go:1\nruntime.efaceeq(0x1)\n\tr.go:1\n" +
			"reflect.Value.Kind(...)\n\tr.go:1\nexample.com/a.f(...)\n\tf.go:1\n", true},
		{"another's below it", "text\nb.f()\n\tf.go:1\npanic({0x1, 0x2})\n\tp.go:1\nexample.com/b.f()\n\tf.go:1\n" +
			"example.com/a.f()\n\tf.go:1\n", false},
		{"of a longer name", "text\npanic({0x1, 0x2})\n\tp.go:1\nexample.com/a/b.f()\n\tf.go:1\n", false},
		{"named by the reason", "example.com/a.f()\n", false},
		{"no stack", "text\npanic(", false},
		{"no text", 1, false},
	} {
		if got := panickedIn(c.reason, pkg); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
