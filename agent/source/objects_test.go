package source

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// inMemory keeps objects for a test.
type inMemory struct {
	mu sync.Mutex
	m  map[string]*SavedObject
}

func (s *inMemory) Get(key string) (*SavedObject, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[key], nil
}

func (s *inMemory) Put(key string, o *SavedObject) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[key] = o
	return nil
}

func (s *inMemory) Delete(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
	return nil
}

func settings(version, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "settings", UID: "u", ResourceVersion: version},
		Data:       map[string]string{"a": value},
	}
}

// reader is a pod that takes its environment from the settings.
func reader() *corev1.Pod {
	from := corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
	}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", EnvFrom: []corev1.EnvFromSource{from}}}},
	}
}

// follow runs a script in a bubble of time, with objects that follow client.
func follow(t *testing.T, client *fake.Clientset, script func(t *testing.T, o *Objects, value func() string)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := &Objects{Client: client, Saved: &inMemory{m: map[string]*SavedObject{}}, Log: slog.New(slog.DiscardHandler)}
		o.Start(ctx)
		script(t, o, func() string {
			t.Helper()
			c, err := o.ConfigMap(ctx, "ns", "settings")
			if err != nil {
				return err.Error()
			}
			return c.Data["a"]
		})
		cancel()
		o.wg.Wait()
	})
}

// TestObjectIsFollowed: changes, the deletion and the return of an object are heard.
func TestObjectIsFollowed(t *testing.T) {
	client := fake.NewClientset(settings("1", "one"))
	follow(t, client, func(t *testing.T, o *Objects, value func() string) {
		w := watch.NewRaceFreeFake()
		client.PrependWatchReactor("configmaps", clienttesting.DefaultWatchReactor(w, nil))
		var changes atomic.Int32
		o.Changed = func(string) { changes.Add(1) }
		o.Track(reader())
		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() {}, "one"},
			{func() { w.Modify(settings("2", "two")) }, "two"},
			{func() { w.Delete(settings("3", "two")) }, `configmap "settings" not found`},
			{func() { w.Add(settings("4", "four")) }, "four"},
		} {
			step.do()
			synctest.Wait()
			if got := value(); got != step.want {
				t.Errorf("got %q, want %q", got, step.want)
			}
		}
		if n := changes.Load(); n != 3 {
			t.Errorf("told of %d changes", n)
		}
	})
}

// TestClosedWatch: a server that ends each watch at once is not asked without a
// pause.
func TestClosedWatch(t *testing.T) {
	client := fake.NewClientset(settings("1", "one"))
	var lists atomic.Int32
	client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		lists.Add(1)
		return false, nil, nil
	})
	client.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, watch.NewEmptyWatch(), nil
	})
	follow(t, client, func(t *testing.T, o *Objects, value func() string) {
		o.Track(reader())
		time.Sleep(time.Minute)
		if n := lists.Load(); n < 2 || n > 30 || value() != "one" {
			t.Errorf("%d lists in a minute, %s", n, value())
		}
	})
}

// TestSilentAPI: what an earlier agent kept serves until the API is back. (The
// library's pause after an error does not know of a bubble's time.)
func TestSilentAPI(t *testing.T) {
	client := fake.NewClientset(settings("2", "new"))
	var away atomic.Bool
	away.Store(true)
	client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	changed := make(chan string, 1)
	o := &Objects{
		Client:  client,
		Saved:   &inMemory{m: map[string]*SavedObject{}},
		Changed: func(namespace string) { changed <- namespace },
		Log:     slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Start(ctx)
	if err := o.Saved.Put(ref{configMap, "ns", "settings"}.key(),
		&SavedObject{ConfigMap: settings("1", "kept")}); err != nil {
		t.Fatal(err)
	}
	o.Track(reader())
	if c, err := o.ConfigMap(ctx, "ns", "settings"); err != nil || c.Data["a"] != "kept" {
		t.Errorf("got %v, %v", c, err)
	}
	away.Store(false)
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Error("the API's return is not noticed")
	}
	if c, err := o.ConfigMap(ctx, "ns", "settings"); err != nil || c.Data["a"] != "new" {
		t.Errorf("after the API is back: %v, %v", c, err)
	}
	cancel()
	o.wg.Wait()
}

// TestImmutable: what cannot change is read once.
func TestImmutable(t *testing.T) {
	c := settings("1", "one")
	yes := true
	c.Immutable = &yes
	client := fake.NewClientset(c)
	follow(t, client, func(t *testing.T, o *Objects, value func() string) {
		o.Track(reader())
		time.Sleep(time.Hour)
		if got := value(); got != "one" {
			t.Errorf("got %q", got)
		}
		if n := len(client.Actions()); n > 2 {
			t.Errorf("%d requests: %v", n, client.Actions())
		}
	})
}
