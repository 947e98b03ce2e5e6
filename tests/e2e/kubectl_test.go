package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "localhost/hello:1", ports: [{containerPort: 8080}]}
`

// TestKubectlRead: get in all its forms, describe, explain and discovery.
func TestKubectlRead(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(web)
	s.k("rollout", "status", "deployment/web", "--timeout=60s")
	s.k("expose", "deployment", "web", "--port=80", "--target-port=8080")

	s.says("NAME   READY   UP-TO-DATE   AVAILABLE   AGE", "get", "deployment", "web")
	s.says("CONTAINERS   IMAGES              SELECTOR", "get", "deployment", "web", "-o", "wide")
	s.says("DESIRED   CURRENT   READY   AGE", "get", "replicasets")
	s.says("READY   STATUS    RESTARTS   AGE", "get", "pods")
	s.says("NODE    NOMINATED NODE   READINESS GATES", "get", "pods", "-o", "wide")
	s.says("TYPE        CLUSTER-IP", "get", "services")
	s.says("ADDRESSTYPE   PORTS", "get", "endpointslices")
	s.says("STATUS   ROLES", "get", "nodes")
	s.says("INTERNAL-IP", "get", "nodes", "-o", "wide")
	s.says("kind: Deployment", "get", "deploy/web", "-o", "yaml")
	s.says(`"kind": "Deployment"`, "get", "deploy", "web", "-o", "json")
	s.says("deployment.apps/web", "get", "deploy", "web", "-o", "name")
	s.says("web 2", "get", "deploy", "web", "-o", "jsonpath={.metadata.name} {.spec.replicas}")
	s.says("web", "get", "deploy", "-o", "custom-columns=N:.metadata.name", "--no-headers")
	s.says("pod/web-", "get", "pods", "-l", "app=web", "-o", "name")
	s.says("No resources found", "get", "pods", "-l", "app notin (web)")
	s.says("pod/web-", "get", "pods", "--field-selector", "status.phase=Running,spec.nodeName=node1", "-o", "name")
	s.says("No resources found", "get", "pods", "--field-selector", "status.phase=Failed")
	s.refused("field label not supported: spec.nonsense", "get", "pods", "--field-selector", "spec.nonsense=1")
	s.refused(`deployments.apps "none" not found`, "get", "deployment", "none")
	s.refused(`the server doesn't have a resource type "nonsense"`, "get", "nonsense")
	s.says("service/web", "get", "all")
	s.says("pod-template-hash=", "get", "pods", "--sort-by=.metadata.name", "--show-labels")
	s.says("kube-system", "get", "namespaces")
	s.says("node1", "get", "leases", "-n", "kube-node-lease")

	pod := strings.Fields(s.k("get", "pods", "-o", "jsonpath={.items[*].metadata.name}"))[0]
	for _, d := range []struct{ object, want string }{
		{"pod/" + pod, "Successfully assigned"}, {"pod/" + pod, "QoS Class:"}, {"pod/" + pod, "Controlled By:  ReplicaSet/web-"},
		{"node/node1", "Allocated resources:"}, {"node/node1", "KubeletReady"}, {"node/node1", "InternalIP:"},
		{"service/web", "Endpoints:"}, {"deployment/web", "RollingUpdateStrategy:  25% max unavailable, 25% max surge"},
		{"deployment/web", "ScalingReplicaSet"}, {"namespace/" + s.ns, "No resource quota."},
	} {
		s.says(d.want, "describe", d.object)
	}
	s.says("FIELD: strategy <DeploymentStrategy>", "explain", "deployment.spec.strategy")
	s.says("maxSurge", "explain", "deployment.spec.strategy", "--recursive")
	s.says("deployments", "api-resources", "--api-group=apps", "--verbs=list")
	s.says("poddisruptionbudgets                pdb          policy/v1", "api-resources")
	s.says("apps/v1", "api-versions")
	s.says("yes", "auth", "can-i", "create", "pods")
	s.refused("no", "auth", "can-i", "create", "pods", "--as=nobody")
	s.says("shoal:cluster-admins", "auth", "whoami")
	s.says("Username    nobody", "auth", "whoami", "--as=nobody", "--as-group=system:authenticated")
	s.refused(`pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "`+s.ns+
		`"`, "get", "pods", "--as=nobody")
	s.says("Scheduled", "events", "--for", "pod/"+pod)
	s.says("Server Version: v1.36", "version")
	s.says("is running at", "cluster-info")
	s.says("ok", "get", "--raw", "/readyz")
}

// TestKubectlWatch: -w shows what happens after it began.
func TestKubectlWatch(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "configmap", "first")
	cmd := cluster.KubectlCommand("-n", s.ns, "get", "configmaps", "-w", "-o", "name", "--field-selector=metadata.name!=kube-root-ca.crt")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	lines.Scan()
	s.k("create", "configmap", "second")
	first := lines.Text()
	lines.Scan()
	if first != "configmap/first" || lines.Text() != "configmap/second" {
		t.Errorf("watched %q, %q", first, lines.Text())
	}
}

// TestKubectlWrite: create, apply of both kinds, patches, edit, replace, label
// and annotate, diff, delete with all propagation policies.
func TestKubectlWrite(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "configmap", "c", "--from-literal=a=1")
	s.refused(`configmaps "c" already exists`, "create", "configmap", "c")
	s.says("configmap/c labeled", "label", "configmap", "c", "x=y")
	s.refused("'x' already has a value (y), and --overwrite is false", "label", "configmap", "c", "x=z")
	s.says("configmap/c unlabeled", "label", "configmap", "c", "x-")
	s.says("configmap/c annotated", "annotate", "configmap", "c", "k=v")
	s.says("patched", "patch", "configmap", "c", "--type=json", `-p=[{"op":"add","path":"/data/b","value":"2"}]`)
	s.says("patched", "patch", "configmap", "c", "--type=merge", `-p={"data":{"a":null,"c":"3"}}`)
	s.says(`{"b":"2","c":"3"}`, "get", "configmap", "c", "-o", "jsonpath={.data}")
	s.refused("the server rejected our request due to an error in our request", "patch", "configmap", "c",
		"--type=json", `-p=[{"op":"remove","path":"/data/none"}]`)
	s.edit("configmap/c", `s/c: "3"/c: "4"/`)
	s.says(`{"b":"2","c":"4"}`, "get", "configmap", "c", "-o", "jsonpath={.data}")
	s.saysWith("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {r: s}}", "replaced", "replace", "-f", "-")
	s.says(`{"r":"s"}`, "get", "configmap", "c", "-o", "jsonpath={.data}")

	s.apply(web)
	s.saysWith(web, "deployment.apps/web unchanged", "apply", "-f", "-")
	changed := strings.Replace(web, "replicas: 2", "replicas: 1", 1)
	if out, err := cluster.Kubectl(changed, "-n", s.ns, "diff", "-f", "-"); err == nil || !strings.Contains(out, "+  replicas: 1") {
		t.Errorf("diff: %v\n%s", err, out)
	}
	s.saysWith(changed, "configured", "apply", "-f", "-")
	s.says("patched", "patch", "deployment", "web", `-p={"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"A","value":"B"}]}]}}}}`)
	s.says("localhost/hello:1 A", "get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].env[0].name}")
	// On an object that no controller writes: kubectl compares what it read
	// before with what the patch returned.
	s.says("created", "create", "configmap", "still", "--from-literal=a=b")
	s.says("no change", "patch", "configmap", "still", `-p={"data":{"a":"b"}}`)

	own := "{apiVersion: v1, kind: ConfigMap, metadata: {name: owned}, data: {k: %s}}"
	s.saysWith(fmt.Sprintf(own, "a"), "serverside-applied", "apply", "--server-side", "--field-manager=one", "-f", "-")
	s.refusedWith(fmt.Sprintf(own, "b"), `Apply failed with 1 conflict: conflict with "one": .data.k`, "apply",
		"--server-side", "--field-manager=two", "-f", "-")
	s.saysWith(fmt.Sprintf(own, "b"), "serverside-applied", "apply", "--server-side", "--field-manager=two",
		"--force-conflicts", "-f", "-")
	s.says("two", "get", "configmap", "owned", "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields[*].manager}")

	s.says("deleted", "delete", "deployment", "web", "--cascade=orphan")
	s.until("", "get", "replicasets", "-o", "jsonpath={.items[*].metadata.ownerReferences}")
	s.says("replicaset.apps/web-", "get", "replicasets", "-o", "name")
	s.says("deleted", "delete", "replicaset", "--all", "--cascade=foreground", "--timeout=60s")
	s.until("", "get", "pods", "-o", "name")
	s.sleeper("forced")
	s.says("force deleted", "delete", "pod", "forced", "--force", "--grace-period=0")
	s.sleeper("graced")
	s.says("deleted", "delete", "pod", "graced", "--grace-period=1", "--timeout=20s")
	s.says("deleted", "delete", "configmaps", "--all")
}

// edit runs kubectl edit with sed as the editor.
func (s space) edit(object, script string) {
	s.t.Helper()
	editor := filepath.Join(s.t.TempDir(), "editor")
	if err := os.WriteFile(editor, []byte("#!/bin/sh\nexec sed -i '"+script+"' \"$1\"\n"), 0o755); err != nil {
		s.t.Fatal(err)
	}
	cmd := cluster.KubectlCommand("-n", s.ns, "edit", object)
	cmd.Env = append(cmd.Env, "KUBE_EDITOR="+editor)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "edited") {
		s.t.Errorf("edit: %v %s", err, out)
	}
}

// TestKubectlRollout: scale, set image, rollout of all kinds.
func TestKubectlRollout(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(web)
	s.says(`deployment "web" successfully rolled out`, "rollout", "status", "deployment/web", "--timeout=60s")
	s.says("scaled", "scale", "deployment/web", "--replicas=3", "--current-replicas=2")
	s.field("deployment/web", ".status.readyReplicas", "3")
	s.says("image updated", "set", "image", "deployment/web", "web=localhost/nginx:1")
	s.says("successfully rolled out", "rollout", "status", "deployment/web", "--timeout=60s")
	s.says("REVISION  CHANGE-CAUSE\n1         <none>\n2         <none>", "rollout", "history", "deployment/web")
	s.says("localhost/nginx:1", "rollout", "history", "deployment/web", "--revision=2")
	s.says("rolled back", "rollout", "undo", "deployment/web")
	s.says("successfully rolled out", "rollout", "status", "deployment/web", "--timeout=60s")
	s.says("localhost/hello:1", "get", "deployment/web", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	s.says("paused", "rollout", "pause", "deployment/web")
	s.k("set", "env", "deployment/web", "A=B")
	s.refused("can't restart paused deployment", "rollout", "restart", "deployment/web")
	s.says("resumed", "rollout", "resume", "deployment/web")
	s.says("restarted", "rollout", "restart", "deployment/web")
	s.says("successfully rolled out", "rollout", "status", "deployment/web", "--timeout=60s")
	s.says("condition met", "wait", "deployment/web", "--for=condition=Available", "--timeout=10s")
	s.k("scale", "deployment/web", "--replicas=0")
	s.says("condition met", "wait", "deployment/web", "--for=jsonpath={.spec.replicas}=0", "--timeout=10s")
}

// TestKubectlLogs: -f, --previous, --tail, -c, --all-containers.
func TestKubectlLogs(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: a, image: "localhost/busybox:1", command: [sh, -c, "if [ -f /m/x ]; then echo second; exec sleep 999; fi; touch /m/x; echo first; exit 3"], volumeMounts: [{name: m, mountPath: /m}]}
  - {name: b, image: "localhost/busybox:1", command: [sh, -c, "echo one; echo two; echo three; exec sleep 999"]}
  volumes: [{name: m, emptyDir: {}}]
`)
	s.shows("second", "logs", "p", "-c", "a")
	s.says("first", "logs", "p", "-c", "a", "--previous")
	s.says("Defaulted container \"a\" out of: a, b", "logs", "p")
	if out := s.k("logs", "p", "-c", "b", "--tail=2"); out != "two\nthree\n" {
		t.Errorf("tail: %q", out)
	}
	out := s.k("logs", "p", "--all-containers", "--prefix", "--timestamps")
	for _, want := range []string{"[pod/p/a] 20", "[pod/p/b] 20", " second\n", " three\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("all containers: no %q in %q", want, out)
		}
	}
	s.refused("container c is not valid for pod p", "logs", "p", "-c", "c")
	s.refused("previous terminated container \"b\" in pod \"p\" not found", "logs", "p", "-c", "b", "--previous")

	s.k("run", "f", "--image=localhost/busybox:1", "--restart=Never", "--", "sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.3; done")
	s.shows("1", "logs", "f")
	if out := s.k("logs", "-f", "f"); out != "1\n2\n3\n4\n5\n" {
		t.Errorf("followed: %q", out)
	}
}

// TestKubectlSessions: exec with exit code, standard input and a terminal with
// its size, attach, cp both ways, port-forward.
func TestKubectlSessions(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.sleeper("p")
	cmd := cluster.KubectlCommand("-n", s.ns, "exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 42")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 42 || stdout.String() != "out\n" ||
		!strings.HasPrefix(stderr.String(), "err\n") {
		t.Errorf("exec: %v %q %q", err, stdout.String(), stderr.String())
	}
	if out, err := cluster.Kubectl("hello\n", "-n", s.ns, "exec", "-i", "p", "--", "cat"); err != nil || out != "hello\n" {
		t.Errorf("stdin: %v %q", err, out)
	}
	s.refused(`not found in $PATH`, "exec", "p", "--", "nonsense")
	s.refused(`pods "none" not found`, "exec", "none", "--", "true")

	big := strings.Repeat("0123456789abcdef", 1<<16)
	if out, err := cluster.Kubectl(big, "-n", s.ns, "exec", "-i", "p", "--", "cat"); err != nil || out != big {
		t.Errorf("1 MB through exec: %v, %d bytes back", err, len(out))
	}
	kubectl := strings.Join(cluster.KubectlCommand("-n", s.ns).Args, " ")
	out, err := exec.Command("script", "-qec",
		"stty rows 33 cols 77; "+kubectl+" exec -it p -- sh -c 'sleep 0.3; stty size; tty'",
		"/dev/null").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "33 77") || !strings.Contains(string(out), "/dev/pts/") {
		t.Errorf("terminal: %v %q", err, out)
	}

	s.k("run", "shell", "--image=localhost/busybox:1", "--restart=Never", "--stdin", "--attach=false", "--", "sh", "-c",
		"while read l; do echo got $l; done")
	s.ready("shell")
	attach := cluster.KubectlCommand("-n", s.ns, "attach", "-i", "shell")
	in, _ := attach.StdinPipe()
	var attached bytes.Buffer
	attach.Stdout = &attached
	if err := attach.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "this")
	s.shows("got this", "logs", "shell")
	in.Close()
	_ = attach.Process.Kill()
	_ = attach.Wait()
	s.says("echoed 5", "run", "once", "--image=localhost/busybox:1", "--restart=Never", "--rm", "-i", "--", "sh", "-c",
		"sleep 1; echo echoed 5")

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.k("cp", filepath.Join(dir, "a"), s.ns+"/p:/tmp/b")
	s.k("cp", s.ns+"/p:/tmp/b", filepath.Join(dir, "c"))
	if back, _ := os.ReadFile(filepath.Join(dir, "c")); string(back) != "content" {
		t.Errorf("copied back: %q", back)
	}

	s.k("create", "deployment", "hello", "--image=localhost/hello:1")
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	forward := cluster.KubectlCommand("-n", s.ns, "port-forward", "deployment/hello", "18080:8080")
	forwarded, _ := forward.StdoutPipe()
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer forward.Wait()
	defer forward.Process.Kill()
	if line, err := bufio.NewReader(forwarded).ReadString('\n'); err != nil {
		t.Fatalf("port-forward: %v %q", err, line)
	}
	for range 3 {
		if out, err := cluster.Run("curl", "-sS", "--max-time", "5", "http://127.0.0.1:18080"); err != nil ||
			!strings.HasPrefix(out, "Hello from pod hello-") {
			t.Errorf("through port-forward: %v %q", err, out)
		}
	}
}

// TestSessionsOverSPDY: the older transport of kubectl works as well.
func TestSessionsOverSPDY(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.sleeper("p")
	cmd := cluster.KubectlCommand("-n", s.ns, "exec", "-i", "p", "--", "sh", "-c", "cat; exit 5")
	cmd.Env = append(cmd.Env, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false")
	cmd.Stdin = strings.NewReader("by spdy")
	if out, err := cmd.Output(); string(out) != "by spdy" || cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("exec over SPDY: %v %q", err, out)
	}
}

// TestKubectlNode: taint, cordon, drain; a PodDisruptionBudget refuses. It is
// not parallel: pods of other tests would be drained.
func TestKubectlNode(t *testing.T) {
	s := newSpace(t)
	s.says("tainted", "taint", "node", "node1", "k=v:PreferNoSchedule")
	s.says("untainted", "taint", "node", "node1", "k-")
	s.apply(web)
	s.k("rollout", "status", "deployment/web", "--timeout=60s")
	s.k("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=2")
	s.field("poddisruptionbudget/web", ".status.currentHealthy", "2")
	s.says("cordoned", "cordon", "node1")
	s.says("SchedulingDisabled", "get", "node", "node1")
	t.Cleanup(func() { cluster.Must(t, "uncordon", "node1") })
	s.refused("Cannot evict pod as it would violate the pod's disruption budget", "drain", "node1",
		"--pod-selector=app=web", "--timeout=3s")
	s.k("run", "waits", "--image=localhost/busybox:1", "--restart=Never", "--", "sleep", "999")
	s.shows("0/1 nodes are available: 1 node(s) were unschedulable", "get", "events", "--field-selector=reason=FailedScheduling")
	s.k("delete", "poddisruptionbudget", "web")
	s.says("drained", "drain", "node1", "--pod-selector=app=web", "--timeout=30s")
	s.field("deployment/web", ".status.unavailableReplicas", "2")
	s.says("uncordoned", "uncordon", "node1")
	s.k("rollout", "status", "deployment/web", "--timeout=60s")
	s.ready("waits")
}

// TestBadManifests: what is refused, in upstream's words.
func TestBadManifests(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	pod := func(spec string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: bad}, spec: " + spec + "}"
	}
	for _, c := range []struct{ manifest, want string }{
		{pod(`{containers: [{name: a, image: b}], nonsense: 1}`), `strict decoding error: unknown field "spec.nonsense"`},
		{pod(`{containers: []}`), `spec.containers: Required value`},
		{pod(`{containers: [{name: A_, image: b}]}`), `spec.containers[0].name: Invalid value: "A_": a lowercase RFC 1123 label must consist of`},
		{pod(`{containers: [{name: a}]}`), `spec.containers[0].image: Required value`},
		{pod(`{containers: [{name: a, image: b}, {name: a, image: b}]}`), `spec.containers[1].name: Duplicate value: "a"`},
		{pod(`{restartPolicy: Sometimes, containers: [{name: a, image: b}]}`), `spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`},
		{pod(`{containers: [{name: a, image: b, resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}}]}`), `spec.containers[0].resources.requests: Invalid value: "2Gi": must be less than or equal to memory limit of 1Gi`},
		{pod(`{containers: [{name: a, image: b, volumeMounts: [{name: v, mountPath: /v}]}]}`), `spec.containers[0].volumeMounts[0].name: Not found: "v"`},
		{pod(`{containers: [{name: a, image: b, ports: [{containerPort: 99999}]}]}`), `spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive`},
		{pod(`{containers: [{name: a, image: b, resources: {limits: {cpu: lots}}}]}`), `quantities must match the regular expression`},
		{pod(`{serviceAccountName: none, containers: [{name: a, image: b}]}`),
			`error looking up service account ` + s.ns + `/none: serviceaccount "none" not found`},
		{pod(`{priorityClassName: none, containers: [{name: a, image: b}]}`), `no PriorityClass with name none was found`},
		{`{apiVersion: v1, kind: Service, metadata: {name: bad_}, spec: {ports: [{port: 80}]}}`, `metadata.name: Invalid value: "bad_": a lowercase RFC 1123 label must consist of`},
		{`{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {type: NodePort, ports: [{port: 80, nodePort: 80}]}}`,
			`spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767`},
		{`{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {clusterIP: 1.2.3.4, ports: [{port: 80}]}}`, `spec.clusterIPs: Invalid value: ["1.2.3.4"]: failed to allocate IP 1.2.3.4: the provided network does not match the current range`},
		{`{apiVersion: apps/v1, kind: Deployment, metadata: {name: bad}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: b}]}}}}`,
			"spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`"},
		{`{apiVersion: batch/v1, kind: Job, metadata: {name: bad}, spec: {template: {spec: {containers: [{name: a, image: b}]}}}}`,
			`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`},
		{`{apiVersion: v1, kind: ConfigMap, metadata: {name: bad}, data: {"a/b": c}}`, `data[a/b]: Invalid value: "a/b": a valid config key must consist of`},
		{`{apiVersion: v1, kind: Nonsense, metadata: {name: bad}}`, `no matches for kind "Nonsense" in version "v1"`},
	} {
		s.refusedWith(c.manifest, c.want, "apply", "-f", "-")
	}
	s.refused(`namespaces "none" not found`, "-n", "none", "create", "configmap", "c")
	s.sleeper("fixed")
	s.refused("Forbidden: pod updates may not change fields other than", "patch", "pod", "fixed", "-p", `{"spec":{"terminationGracePeriodSeconds":5}}`)
}

// TestNamespaceDeletion removes all that is in it.
func TestNamespaceDeletion(t *testing.T) {
	t.Parallel()
	name := "e2e-gone"
	cluster.Must(t, "create", "namespace", name)
	cluster.MustWith(t, web, "-n", name, "apply", "-f", "-")
	cluster.Must(t, "-n", name, "rollout", "status", "deployment/web", "--timeout=60s")
	start := time.Now()
	cluster.Must(t, "delete", "namespace", name, "--timeout=60s")
	t.Logf("gone after %v", time.Since(start))
	harness.Eventually(t, "no pods", func() (bool, string) {
		out, err := cluster.Kubectl("", "get", "pods", "-n", name, "-o", "name")
		return err == nil && out == "", fmt.Sprint(out, err)
	})
}
