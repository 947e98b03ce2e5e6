package store

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// etcdOf is a storage whose watches and lists a test writes.
type etcdOf struct {
	storage.Interface
	watching *watch.FakeWatcher
	list     corev1.ConfigMapList
}

func (e *etcdOf) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	e.watching = watch.NewFakeWithChanSize(10, false)
	return e.watching, nil
}

func (e *etcdOf) GetList(_ context.Context, _ string, _ storage.ListOptions, out runtime.Object) error {
	*out.(*corev1.ConfigMapList) = e.list
	return nil
}

// Versioner compares versions as etcd3 does.
func (e *etcdOf) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func object(name, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

func beginEnd(version string) *corev1.ConfigMap {
	m := object("", version)
	m.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return m
}

// begin starts the watch that fills a cache, whose events nobody else reads.
func begin(t *testing.T, s *source) {
	t.Helper()
	initial := true
	w, err := s.Watch(t.Context(), "/", storage.ListOptions{SendInitialEvents: &initial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	go func() {
		for range w.ResultChan() {
		}
	}()
}

func expectEvent(t *testing.T, w watch.Interface, kind watch.EventType, name, version string) *corev1.ConfigMap {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		m := e.Object.(*corev1.ConfigMap)
		if e.Type != kind || m.Name != name || m.ResourceVersion != version {
			t.Fatalf("got %s %s at %s, want %s %s at %s", e.Type, m.Name, m.ResourceVersion, kind, name, version)
		}
		return m
	case <-time.After(time.Minute):
		t.Fatalf("no event, want %s %s at %s", kind, name, version)
	}
	return nil
}

func expectNone(t *testing.T, w watch.Interface) {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		t.Fatalf("unexpected %s %v", e.Type, e.Object)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestFollow(t *testing.T) {
	etcd := &etcdOf{}
	s := newSource(etcd, &stalled{}, func() runtime.Object { return &corev1.ConfigMap{} })
	early := s.follow()
	defer early.Stop()
	begin(t, s)
	a := object("a", "1")
	etcd.watching.Add(a)
	expectNone(t, early) // the state is not whole yet
	etcd.watching.Action(watch.Bookmark, beginEnd("2"))
	if expectEvent(t, early, watch.Added, "a", "1") != a {
		t.Error("a follower has a copy")
	}
	expectEvent(t, early, watch.Bookmark, "", "2")

	b := object("b", "3")
	etcd.watching.Add(b)
	expectEvent(t, early, watch.Added, "b", "3")
	etcd.watching.Delete(object("a", "4"))
	expectEvent(t, early, watch.Deleted, "a", "4")

	late := s.follow()
	defer late.Stop()
	if expectEvent(t, late, watch.Added, "b", "3") != b {
		t.Error("a late follower has a copy")
	}
	expectEvent(t, late, watch.Bookmark, "", "4")
	etcd.watching.Modify(object("b", "5"))
	expectEvent(t, late, watch.Modified, "b", "5")
	expectEvent(t, early, watch.Modified, "b", "5")
}

// When etcd's watch broke and the cache filled anew, followers hear of the
// difference only.
func TestFollowAcrossAFreshStart(t *testing.T) {
	etcd := &etcdOf{}
	s := newSource(etcd, &stalled{}, func() runtime.Object { return &corev1.ConfigMap{} })
	begin(t, s)
	old := etcd.watching
	for _, name := range []string{"stays", "goes", "changes"} {
		old.Add(object(name, "1"))
	}
	old.Action(watch.Bookmark, beginEnd("1"))
	f := s.follow()
	defer f.Stop()
	for range 4 {
		<-f.ResultChan()
	}
	begin(t, s)
	old.Add(object("late", "9")) // of the watch that was given up
	for _, o := range []*corev1.ConfigMap{object("stays", "1"), object("changes", "6")} {
		etcd.watching.Add(o)
	}
	etcd.watching.Action(watch.Bookmark, beginEnd("7"))
	expectEvent(t, f, watch.Deleted, "goes", "1")
	expectEvent(t, f, watch.Modified, "changes", "6")
	expectNone(t, f)

	etcd.list = corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "8"},
		Items: []corev1.ConfigMap{*object("stays", "1"), *object("changes", "6"), *object("new", "8")}}
	list := &corev1.ConfigMapList{}
	if err := s.GetList(t.Context(), "/", storage.ListOptions{}, list); err != nil {
		t.Fatal(err)
	}
	if expectEvent(t, f, watch.Added, "new", "8") != &list.Items[2] {
		t.Error("the object of a list is a copy")
	}
}

func TestBeat(t *testing.T) {
	start := time.Now()
	c := beatClock{start: start}
	for _, tt := range []struct{ at, d, want time.Duration }{
		{0, 100 * time.Millisecond, 100 * time.Millisecond},
		{0, 1250 * time.Millisecond, time.Second},
		{60 * time.Millisecond, 1250 * time.Millisecond, 940 * time.Millisecond},
		{400 * time.Millisecond, 1250 * time.Millisecond, 1600 * time.Millisecond},
		{5 * time.Second, 15 * time.Second, 15 * time.Second},
	} {
		if got := c.toBeat(start.Add(tt.at), tt.d); got != tt.want {
			t.Errorf("%s after %s: fires after %s, want %s", tt.d, tt.at, got, tt.want)
		}
	}
}
