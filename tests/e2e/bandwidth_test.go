package e2e

import (
	"strings"
	"testing"
	"time"
)

// bounded is a pod that serves two million bytes, with an annotation.
const bounded = `
apiVersion: v1
kind: Pod
metadata: {name: %NAME, annotations: {%ANNOTATION}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: "localhost/busybox:1"
    command: [sh, -c, "mkdir /w; head -c 2000000 /dev/zero > /w/data; exec httpd -f -p 8080 -h /w"]
`

// TestBandwidth: CNI-8, MT-11: what a pod sends takes its time, and one whose annotation
// cannot be read tells why it does not start.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	pod := func(name, annotation string) {
		t.Helper()
		s.apply(strings.NewReplacer("%NAME", name, "%ANNOTATION", annotation).Replace(bounded))
	}
	pod("slow", `kubernetes.io/egress-bandwidth: 8M`)
	pod("wrong", `kubernetes.io/ingress-bandwidth: fast`)
	s.sleeper("client")
	s.ready("slow")
	ip := s.k("get", "pod", "slow", "-o", "jsonpath={.status.podIP}")
	start := time.Now()
	out := s.k("exec", "client", "--", "sh", "-c", "wget -qO- http://"+ip+":8080/data | wc -c")
	if took := time.Since(start); strings.TrimSpace(out) != "2000000" || took < 1500*time.Millisecond {
		t.Errorf("%s bytes at 8 Mbit/s came in %s", strings.TrimSpace(out), took)
	}
	s.shows("kubernetes.io/ingress-bandwidth", "get", "events", "--field-selector",
		"involvedObject.name=wrong,reason=FailedCreatePodSandBox", "-o", "jsonpath={.items[*].message}")
	s.shows("Pending", "get", "pod", "wrong", "-o", "jsonpath={.status.phase}")
}
