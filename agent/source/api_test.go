package source

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func podOf(name string, uid types.UID, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: "1"}}
	p.Spec.NodeName = "n1"
	for _, c := range change {
		c(p)
	}
	return p
}

func deleted(p *corev1.Pod) {
	now, grace := metav1.Now(), int64(5)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
}

func mirrored(p *corev1.Pod) { p.Annotations = map[string]string{mirrorAnnotation: "x"} }

// TestPodsOfTheAPI: the node's pods are heard by one watch, which begins with those
// that are there; nothing is pruned before these are heard in full.
func TestPodsOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		w := watch.NewRaceFreeFake()
		client.PrependWatchReactor("pods", func(a clienttesting.Action) (bool, watch.Interface, error) {
			asked := a.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String()
			if want := fields.OneTermEqualSelector("spec.nodeName", "n1").String(); asked != want {
				t.Errorf("watched %q, want %q", asked, want)
			}
			return true, w, nil
		})
		whole := func() {
			w.Action(watch.Bookmark, podOf("", "", func(p *corev1.Pod) {
				p.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			}))
		}
		h := newHandler()
		h.pods["a1"] = handled{"a", nameAPI} // those of an earlier agent
		h.pods["old"] = handled{"old", nameAPI}
		h.pods["file"] = handled{"file", nameFile}
		mirrors := &Static{Handler: h, Log: slog.New(slog.DiscardHandler)}
		a := &API{Client: client, Node: "n1", Handler: h, Mirrors: mirrors, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		all := false
		synced := func() bool {
			select {
			case <-a.Synced():
				return true
			default:
				return false
			}
		}
		for _, step := range []struct {
			name string
			do   func()
			want string
		}{
			{"nothing", func() {}, ""},
			{"one of those that are there", func() { w.Add(podOf("a", "a1")) }, ""},
			{"another", func() { w.Add(podOf("m", "m1", mirrored)) }, ""},
			{"these are all", whole, "a updated, old is removed"},
			{"a pod comes", func() { w.Add(podOf("b", "b1")) }, "b runs"},
			{"a pod changes", func() { w.Modify(podOf("b", "b1")) }, "b updated"},
			{"a pod is to end", func() { w.Modify(podOf("b", "b1", deleted)) }, "b ends"},
			{"a pod is gone", func() { w.Delete(podOf("b", "b1", deleted)) }, "b ends, b is removed"},
			{"a pod is gone without a word", func() { w.Delete(podOf("a", "a1")) }, "a is removed"},
			{"a name comes again", func() { w.Add(podOf("b", "b2")) }, "b runs"},
			{"a name is another's, and nobody told", func() { w.Modify(podOf("b", "b3")) }, "b is removed, b runs"},
			{"the end of the one before is told late", func() { w.Delete(podOf("b", "b2")) }, ""},
			{"a mirror changes", func() { w.Modify(podOf("m", "m1", mirrored)) }, ""},
			{"a mirror is gone", func() { w.Delete(podOf("m", "m1", mirrored)) }, ""},
		} {
			step.do()
			synctest.Wait()
			if got := strings.Join(h.heard(), ", "); got != step.want {
				t.Errorf("%s: %q, want %q", step.name, got, step.want)
			}
			if all = all || step.want != ""; synced() != all {
				t.Errorf("%s: synced %t", step.name, synced())
			}
		}
		if len(mirrors.mirrors) != 0 {
			t.Errorf("mirrors that are gone: %v", mirrors.mirrors)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestObjectsOfPods: what pods refer to is followed as long as one of them is here,
// each object once.
func TestObjectsOfPods(t *testing.T) {
	class := "fast"
	p := podOf("p", "p", func(p *corev1.Pod) {
		p.Spec.RuntimeClassName = &class
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "login"}, {Name: "../other"}, {Name: ""}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "1", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
			{Name: "2", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
					{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "key"}}},
				}}}},
			{Name: "3", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}
		from := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "token"}}}
		env := []corev1.EnvVar{{Name: "A", ValueFrom: from}, {Name: "B", Value: "b"}}
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Env: env}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Env: env}}}
	})
	var got []string
	for _, r := range refs(p) {
		got = append(got, r.key())
	}
	want := "runtimeclass__fast secret_ns_login secret_ns_key configmap_ns_c claim_ns_p-3 secret_ns_token"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// TestObjectsAreShared: an object is followed until the last of its pods is gone.
func TestObjectsAreShared(t *testing.T) {
	client := fake.NewClientset(settings("1", "one"))
	follow(t, client, func(t *testing.T, o *Objects, value func() string) {
		second := reader()
		second.UID = "q"
		o.Track(reader())
		o.Track(second)
		o.Track(second)
		key := ref{configMap, "ns", "settings"}.key()
		for _, uid := range []types.UID{"p", "q"} {
			o.Untrack(uid)
			o.Untrack(uid)
		}
		if got, err := o.Saved.Get(key); err != nil || got != nil || len(o.tracked) != 0 {
			t.Errorf("%v, %v, %d are followed", got, err, len(o.tracked))
		}
		if got := value(); got != "one" { // asked for, not followed
			t.Errorf("got %q", got)
		}
	})
}
