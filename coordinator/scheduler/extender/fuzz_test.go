package extender

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// says answers every request with the same bytes.
type says []byte

func (s says) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(s))}, nil
}

// FuzzAnswer: whatever an extender answers, only nodes and pods that it was asked
// about come of it.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{`{"NodeNames":["a"]}`, `{"Nodes":{"items":[{"metadata":{"name":"a"}}]}}`,
		`{"NodeNames":["b"],"FailedNodes":{"a":"x"}}`, `[{"Host":"a","Score":7}]`, `{"Error":"x"}`, `null`,
		`{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u"}]}}}`, `{"NodeNameToMetaVictims":{"a":null,"b":{}}}`,
		`{"NodeNameToMetaVictims":{"a":{"Pods":[null]}}}`} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	victims := map[string]*Victims{"a": {Pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "u"}}}}}
	f.Fuzz(func(t *testing.T, data []byte, names bool) {
		e := &Extender{c: configv1.Extender{URLPrefix: "http://x", NodeCacheCapable: names, Weight: 1},
			client: &http.Client{Transport: says(data)}}
		if v, err := e.Filter(t.Context(), pod, nodes); err == nil && !sets.New("a").IsSuperset(v.Passed) {
			t.Errorf("passed: %v", v.Passed)
		}
		_, _ = e.Prioritize(t.Context(), pod, nodes)
		left, err := e.Preempt(t.Context(), pod, victims, func(node string) []*corev1.Pod { return victims[node].Pods })
		for node, v := range left {
			if err != nil || victims[node] == nil || len(v.Pods) > 0 && v.Pods[0].UID != "u" {
				t.Errorf("left: %s %v %v", node, v, err)
			}
		}
		_ = e.Bind(t.Context(), pod, "a")
	})
}
