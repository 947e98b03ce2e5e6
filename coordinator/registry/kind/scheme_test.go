package kind

import (
	"encoding/json"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s, err := NewScheme(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The versioned type is its group's internal one too: no conversion is made, and
// none is needed.
func TestHubs(t *testing.T) {
	s := newScheme(t)
	for gk, want := range map[schema.GroupKind]any{
		{Group: "", Kind: "Pod"}:                &corev1.Pod{},
		{Group: "apps", Kind: "DeploymentList"}: &appsv1.DeploymentList{},
		{Group: "events.k8s.io", Kind: "Event"}: &corev1.Event{},
	} {
		got, err := s.New(gk.WithVersion(runtime.APIVersionInternal))
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %T, %v", gk, got, err)
		}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
	internal, err := s.UnsafeConvertToVersion(pod, schema.GroupVersion{Version: runtime.APIVersionInternal})
	if err != nil || internal != runtime.Object(pod) {
		t.Errorf("converted to another object: %v, %v", internal, err)
	}
}

// An Event is the same under both APIs, and comes back as it was.
func TestEvents(t *testing.T) {
	s := newScheme(t)
	at := metav1.NewTime(time.Unix(1000, 0))
	core := &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: "e", Namespace: "n"},
		InvolvedObject:      corev1.ObjectReference{Kind: "Pod", Name: "p", FieldPath: "spec"},
		Related:             &corev1.ObjectReference{Kind: "Node", Name: "m"},
		Reason:              "Why",
		Message:             "note",
		Action:              "Act",
		Type:                "Normal",
		Source:              corev1.EventSource{Component: "c", Host: "h"},
		FirstTimestamp:      at,
		LastTimestamp:       metav1.NewTime(at.Add(time.Second)),
		Count:               3,
		EventTime:           metav1.NewMicroTime(at.Add(time.Millisecond)),
		ReportingController: "rc",
		ReportingInstance:   "ri",
		Series:              &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(at.Time)},
	}
	for name, e := range map[string]*corev1.Event{"full": core, "without a series": {Reason: "Why"}} {
		var there eventsv1.Event
		var back corev1.Event
		if err := s.Convert(e, &there, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Convert(&there, &back, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, &back); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if there.Note != e.Message || there.Regarding != e.InvolvedObject || there.DeprecatedCount != e.Count {
			t.Errorf("%s: %+v", name, there)
		}
	}
	var list eventsv1.EventList
	var back corev1.EventList
	in := &corev1.EventList{Items: []corev1.Event{*core, {Reason: "b"}}}
	in.ResourceVersion = "7"
	if err := s.Convert(in, &list, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Convert(&list, &back, nil); err != nil || !cmp.Equal(in, &back) {
		t.Errorf("a list: %v, %s", err, cmp.Diff(in, &back))
	}
}

func TestEventFields(t *testing.T) {
	s := newScheme(t)
	gvk := eventsv1.SchemeGroupVersion.WithKind("Event")
	label, value, err := s.ConvertFieldLabel(gvk, "regarding.name", "p")
	if err != nil || label != "involvedObject.name" || value != "p" {
		t.Errorf("%s=%s, %v", label, value, err)
	}
	if _, _, err := s.ConvertFieldLabel(gvk, "involvedObject.name", "p"); err == nil {
		t.Error("a field of the other API is taken")
	}
}

// TestQueryOptions: what a URL asks of a stream, as upstream reads it.
func TestQueryOptions(t *testing.T) {
	s := newScheme(t)
	for _, c := range []struct {
		query string
		into  runtime.Object
		want  runtime.Object // nil: refused
	}{
		{"", &corev1.PodLogOptions{}, &corev1.PodLogOptions{}},
		{
			"container=c&follow=true&tailLines=5&sinceTime=1970-01-01T00:16:40Z&stream=All", &corev1.PodLogOptions{},
			&corev1.PodLogOptions{
				Container: "c", Follow: true, TailLines: ptr.To(int64(5)),
				SinceTime: ptr.To(metav1.NewTime(time.Unix(1000, 0))), Stream: ptr.To("All"),
			},
		},
		{"tailLines=x", &corev1.PodLogOptions{}, nil},
		{"sinceTime=yesterday", &corev1.PodLogOptions{}, nil},
		// As in upstream all words but false and 0 are true.
		{"follow=0", &corev1.PodLogOptions{}, &corev1.PodLogOptions{}},
		{"follow", &corev1.PodLogOptions{}, &corev1.PodLogOptions{Follow: true}},
		{
			"command=sh&command=-c&stdin=1&unknown=x", &corev1.PodExecOptions{},
			&corev1.PodExecOptions{Command: []string{"sh", "-c"}, Stdin: true},
		},
		{
			"ports=80,81&ports=82", &corev1.PodPortForwardOptions{},
			&corev1.PodPortForwardOptions{Ports: []int32{80, 81, 82}},
		},
		{"ports=http", &corev1.PodPortForwardOptions{}, nil},
		{"path=a/b", &corev1.NodeProxyOptions{}, &corev1.NodeProxyOptions{Path: "a/b"}},
	} {
		query, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Convert(&query, c.into, nil)
		switch {
		case c.want == nil && err == nil:
			t.Errorf("%q: taken as %+v", c.query, c.into)
		case c.want != nil && err != nil:
			t.Errorf("%q: %v", c.query, err)
		case c.want != nil && !cmp.Equal(c.want, c.into):
			t.Errorf("%q: %s", c.query, cmp.Diff(c.want, c.into))
		}
	}
}

// A request for a token that says nothing of its time is decoded as one for an hour,
// one that does stays as it is.
func TestTokenRequestDefault(t *testing.T) {
	for text, want := range map[string]int64{
		`{"spec":{"expirationSeconds":null}}`: 3600, `{}`: 3600, `{"spec":{"expirationSeconds":600}}`: 600,
	} {
		var req authenticationv1.TokenRequest
		if err := json.Unmarshal([]byte(text), &req); err != nil {
			t.Fatal(err)
		}
		newScheme(t).Default(&req)
		if got := req.Spec.ExpirationSeconds; got == nil || *got != want {
			t.Errorf("%s: %v, want %d", text, got, want)
		}
	}
}
