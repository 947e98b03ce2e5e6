package e2e

import (
	"fmt"
	"testing"
)

// TestStatefulSet: names and their DNS, order, partition, rollback, and a pod
// that comes back by its own name (STS-7, STS-8, STS-17, STS-20, STS-29, DIS-12,
// REC-2, FLD-7).
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	set := `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, labels: {app.kubernetes.io/part-of: wordpress}}
spec:
  serviceName: db
  replicas: 3
  selector: {matchLabels: {app: db}}
  updateStrategy: {rollingUpdate: {partition: %d}}
  template:
    metadata: {labels: {app: db}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/hello:1", env: [{name: V, value: "%d"}]}]}
`
	values := func(want string) {
		t.Helper()
		s.until(want, "get", "pods", "-l", "app=db", "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}")
	}
	s.apply(fmt.Sprintf(set, 0, 1))
	s.says("3 new pods have been updated", "rollout", "status", "statefulset/web", "--timeout=60s")
	s.says("web-0 web-1 web-2", "get", "pods", "-l", "app=db", "--sort-by=.metadata.creationTimestamp", "-o", "jsonpath={.items[*].metadata.name}")
	s.says("statefulset.apps/web", "get", "statefulsets,services", "-l", "app.kubernetes.io/part-of=wordpress",
		"--field-selector=metadata.namespace!=default", "-o", "name")
	s.sleeper("client")
	s.gets("client", "http://web-1.db:8080", "Hello from pod web-1")
	s.k("delete", "pod", "web-1")
	s.shows("web-1", "get", "pods", "-o", "name") // to wait for it, it has to be there
	s.ready("web-1")
	s.gets("client", "http://web-1.db."+s.ns+".svc.cluster.local:8080", "Hello from pod web-1")
	s.apply(fmt.Sprintf(set, 2, 2))
	s.says("1 new pods have been updated", "rollout", "status", "statefulset/web", "--timeout=60s")
	values("1 1 2")
	s.apply(fmt.Sprintf(set, 0, 2))
	s.says("3 new pods have been updated", "rollout", "status", "statefulset/web", "--timeout=60s")
	s.says("rolled back", "rollout", "undo", "statefulset/web")
	s.says("3 new pods have been updated", "rollout", "status", "statefulset/web", "--timeout=60s")
	values("1 1 1")
	s.k("scale", "statefulset/web", "--replicas=1")
	s.until("web-0", "get", "pods", "-l", "app=db", "-o", "jsonpath={.items[*].metadata.name}")
}

// TestCronJob: columns, a job by hand, what is refused (CJ-2, CJ-8, CJ-10). Its
// schedule is tested with the controllers, without waiting for a minute.
func TestCronJob(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "cronjob", "hello", "--schedule=0 0 1 1 *", "--image=localhost/busybox:1", "--", "echo", "hi")
	s.says("0 0 1 1 *   <none>     False     0        <none>", "get", "cronjob", "hello")
	s.k("create", "job", "now", "--from=cronjob/hello")
	s.k("wait", "job/now", "--for=condition=Complete", "--timeout=60s")
	s.says("hi", "logs", "job/now")
	s.k("patch", "cronjob", "hello", "-p", `{"spec":{"suspend":true,"timeZone":"Asia/Tokyo"}}`)
	s.says("0 0 1 1 *   Asia/Tokyo   True", "get", "cronjob", "hello")
	s.refused("unknown time zone Asia/Nowhere", "patch", "cronjob", "hello", "-p", `{"spec":{"timeZone":"Asia/Nowhere"}}`)
	s.refused("use timeZone field instead", "create", "cronjob", "zoned", "--schedule=TZ=UTC 0 0 1 1 *", "--image=x")
	s.refused("must be no more than 52 characters", "create", "cronjob",
		"a23456789-123456789-123456789-123456789-123456789-123", "--schedule=@daily", "--image=x")
	s.k("delete", "cronjob", "hello")
	s.until("", "get", "jobs", "-o", "name")
}
