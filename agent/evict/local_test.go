package evict

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// stored is a pod whose containers a and b, and whose emptyDir v, are limited; "" for
// not.
func stored(a, b, v string) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID = "u"
	for name, limit := range map[string]string{"a": a, "b": b} {
		c := corev1.Container{Name: name}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	empty := &corev1.EmptyDirVolumeSource{}
	if v != "" {
		q := resource.MustParse(v)
		empty.SizeLimit = &q
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: empty}}}
	return p
}

func TestExceeds(t *testing.T) {
	critical, manifest := stored("5Mi", "", ""), stored("5Mi", "", "")
	priority := int32(2000000000)
	critical.Spec.Priority = &priority
	manifest.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	for _, c := range []struct {
		name          string
		pod           *corev1.Pod
		a, b, v, disk int64 // MiB
		limited       bool
		want          string
	}{
		{name: "no limit", pod: stored("", "", ""), a: 99, v: 99, disk: 99},
		{name: "critical", pod: critical},
		{name: "of a manifest", pod: manifest},
		{name: "as much as allowed", pod: stored("5Mi", "", "5Mi"), a: 5, v: 5, limited: true},
		{name: "volume", pod: stored("", "", "5Mi"), v: 6, limited: true,
			want: `Usage of EmptyDir volume "v" exceeds the limit "5Mi". `},
		{name: "pod", pod: stored("5Mi", "5Mi", ""), a: 4, b: 4, v: 3, disk: 3, limited: true,
			want: "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "},
		{name: "volume in memory", pod: stored("5Mi", "5Mi", ""), a: 4, b: 4, v: 3, limited: true},
		{name: "container", pod: stored("5Mi", "5Mi", ""), a: 6, limited: true,
			want: `Container a exceeded its local ephemeral storage limit "5Mi". `},
	} {
		if got := Limited(c.pod); got != c.limited {
			t.Errorf("%s: limited: %v", c.name, got)
		}
		use := Use{Containers: map[string]int64{"a": c.a << 20, "b": c.b << 20},
			Volumes: map[string]int64{"v": c.v << 20}, Disk: c.disk << 20}
		if _, got := Exceeds(c.pod, use); c.limited && got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // the clock that wakes Run orders nothing
		var pods []*corev1.Pod
		var bytes int64
		var fault error
		var shared int64 // what the file system counts beside the pod's own
		looks, evicted := 0, 0
		set := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		changed := make(chan struct{}, 1)
		s := &Storage{
			Pods: func() (list []*corev1.Pod) {
				set(func() { list = pods })
				return list
			},
			Changed: changed,
			Measure: func(_ context.Context, _ *corev1.Pod, exactly bool) (use Use, err error) {
				set(func() {
					looks++
					use, err = Use{Containers: map[string]int64{"a": bytes}}, fault
					if !exactly {
						use.Containers["a"] += shared
					}
				})
				return use, err
			},
			Evict:  func(*corev1.Pod, string) { set(func() { evicted++ }) },
			Period: 10 * time.Second,
			Log:    slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		check := func(when string, wantLooks, wantEvicted int) {
			t.Helper()
			synctest.Wait()
			set(func() {
				if looks != wantLooks || evicted != wantEvicted {
					t.Errorf("%s: %d looks, %d evicted, want %d, %d", when, looks, evicted, wantLooks, wantEvicted)
				}
			})
		}
		step := func(f func()) {
			set(f)
			time.Sleep(s.Period)
		}
		time.Sleep(time.Hour)
		check("without pods", 0, 0)
		set(func() { pods = []*corev1.Pod{stored("5Mi", "", "")} })
		changed <- struct{}{}
		time.Sleep(gather)
		check("a limited pod", 1, 0)
		step(func() { bytes, fault = 6<<20, errors.New("no answer") })
		check("nobody knows", 2, 0)
		step(func() { bytes, shared, fault = 5<<20, 1<<20, nil })
		check("its files are not too much", 4, 0)
		step(func() { bytes, shared = 6<<20, 0 })
		check("too much", 6, 1)
		step(func() {})
		check("it ends", 6, 1)
		step(func() { pods = nil })
		check("it has ended", 6, 1)
		time.Sleep(time.Hour)
		check("later", 6, 1)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
