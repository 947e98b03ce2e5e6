package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestInformer: a client-go program over the network sees additions, changes
// and deletions in order.
func TestInformer(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	config, err := cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heard := make(chan string, 16)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(s.ns),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "watched" }))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { heard <- "added " + o.(*corev1.ConfigMap).Name },
		UpdateFunc: func(_, o any) { heard <- "changed " + o.(*corev1.ConfigMap).Data["k"] },
		DeleteFunc: func(any) { heard <- "deleted" },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("%v is not synced", kind)
		}
	}
	maps := client.CoreV1().ConfigMaps(s.ns)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"watched": ""}},
		Data: map[string]string{"k": "1"}}
	cm, err = maps.Create(ctx, cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data["k"] = "2"
	if _, err = maps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"added c", "changed 2", "deleted"} {
		select {
		case got := <-heard:
			if got != want {
				t.Errorf("heard %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("never heard %q", want)
		}
	}
}

// TestPodTalksToAPI: a pod uses its own token under RBAC.
func TestPodTalksToAPI(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "serviceaccount", "reader")
	s.k("create", "role", "reads", "--verb=get,list", "--resource=configmaps")
	s.k("create", "rolebinding", "reads", "--role=reads", "--serviceaccount="+s.ns+":reader")
	s.k("create", "configmap", "readable", "--from-literal=k=found")
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  serviceAccountName: reader
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"], volumeMounts: [{name: bin, mountPath: /kubectl}]}]
  volumes: [{name: bin, hostPath: {path: ` + cluster.Bin + `/kubectl, type: File}}]
`)
	s.ready("p")
	s.says("found", "exec", "p", "--", "/kubectl", "get", "configmap", "readable", "-o", "jsonpath={.data.k}")
	s.refused(`secrets is forbidden: User "system:serviceaccount:`+s.ns+
		`:reader" cannot list resource "secrets" in API group "" in the namespace "`+s.ns+`"`, "exec", "p", "--",
		"/kubectl", "get", "secrets")
	s.says("yes", "auth", "can-i", "list", "configmaps", "--as=system:serviceaccount:"+s.ns+":reader")
	s.refused("no", "auth", "can-i", "delete", "configmaps", "--as=system:serviceaccount:"+s.ns+":reader")
	token := strings.TrimSpace(s.k("create", "token", "reader"))
	if strings.Count(token, ".") != 2 {
		t.Errorf("token: %q", token)
	}
	s.refused("Unauthorized", "--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify",
		"--token=wrong", "get", "pods")
	s.says("readable", "--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify",
		"--token="+token, "get", "configmaps")
	if out, err := cluster.Run("curl", "-sk", "https://127.0.0.1:6443/api/v1/pods"); err != nil ||
		!strings.Contains(out, `User \"system:anonymous\" cannot list resource`) {
		t.Errorf("anonymous: %v %s", err, out)
	}
	if out, err := cluster.Run("curl", "-sk", "https://127.0.0.1:6443/healthz"); err != nil || out != "ok" {
		t.Errorf("anonymous health: %v %s", err, out)
	}
	s.k("create", "role", "makes", "--verb=create", "--resource=roles.rbac.authorization.k8s.io")
	s.k("create", "rolebinding", "makes", "--role=makes", "--serviceaccount="+s.ns+":reader")
	s.refused("is attempting to grant RBAC permissions not currently held",
		"--as=system:serviceaccount:"+s.ns+":reader", "create", "role", "more", "--verb=delete", "--resource=secrets")
}

// TestCustomResources: a definition, its objects with validation, columns,
// status and explain, and deletion.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	t.Cleanup(func() { _, _ = cluster.Kubectl("", "delete", "crd", "boats.e2e.example.com", "--ignore-not-found") })
	s.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.e2e.example.com}
spec:
  group: e2e.example.com
  scope: Namespaced
  names: {kind: Boat, plural: boats, singular: boat, shortNames: [bt]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Masts, type: integer, jsonPath: .spec.masts}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the boat is like.
            properties: {masts: {type: integer, minimum: 1, default: 2}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`)
	s.k("wait", "crd/boats.e2e.example.com", "--for=condition=Established", "--timeout=30s")
	boat := "{apiVersion: e2e.example.com/v1, kind: Boat, metadata: {name: %s}, spec: {%s}}"
	made := func(name, spec string) string {
		return strings.Replace(strings.Replace(boat, "%s", name, 1), "%s", spec, 1)
	}
	s.shows("boats.e2e.example.com", "api-resources", "--api-group=e2e.example.com", "-o", "name")
	s.apply(made("argo", ""))
	s.says("2", "get", "bt", "argo", "-o", "jsonpath={.spec.masts}")
	s.says("MASTS", "get", "boats")
	s.refusedWith(made("raft", "masts: 0"),
		`spec.masts: Invalid value: 0: spec.masts in body should be greater than or equal to 1`, "apply", "-f", "-")
	s.refusedWith(made("raft", "oars: 3"), `unknown field "spec.oars"`, "apply", "-f", "-")
	s.shows("What the boat is like.", "explain", "boat.spec")
	s.says("patched", "patch", "boat", "argo", "--subresource=status", "--type=merge", `-p={"status":{"afloat":true}}`)
	s.says("true 2", "get", "boat", "argo", "-o", "jsonpath={.status.afloat} {.spec.masts}")
	s.says("deleted", "delete", "boat", "argo")
	s.says("deleted", "delete", "crd", "boats.e2e.example.com", "--timeout=30s")
	s.refused("the server", "get", "boats") // "doesn't have" it, or "could not find" what discovery remembers
}

// TestBootstrapToken: a joining node's first credential.
func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	t.Cleanup(func() { _, _ = cluster.Kubectl("", "-n", "kube-system", "delete", "secret", "bootstrap-token-e2etok") })
	s.k("-n", "kube-system", "create", "secret", "generic", "bootstrap-token-e2etok", "--type=bootstrap.kubernetes.io/token",
		"--from-literal=token-id=e2etok", "--from-literal=token-secret=0123456789abcdef", "--from-literal=usage-bootstrap-authentication=true")
	with := func(secret string) []string {
		return []string{"--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify",
			"--token=e2etok." + secret, "auth", "whoami"}
	}
	s.shows("system:bootstrap:e2etok", with("0123456789abcdef")...)
	s.says("system:bootstrappers", with("0123456789abcdef")...)
	s.refused("Unauthorized", with("fedcba9876543210")...)
}

// TestWebhook: a validating webhook that a pod serves is asked, and its failure
// policy holds when it does not answer.
func TestWebhook(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	name := s.ns + "-guard"
	t.Cleanup(func() {
		_, _ = cluster.Kubectl("", "delete", "validatingwebhookconfiguration", name, "--ignore-not-found")
	})
	hook := `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: ` + name + `}
webhooks:
- name: guard.e2e.example.com
  clientConfig: {service: {namespace: ` + s.ns + `, name: nobody, path: /}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + s.ns + `}}
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 1
  failurePolicy: `
	s.apply(hook + "Fail")
	harness.Eventually(t, "the webhook is asked", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "create", "configmap", "c", "--dry-run=server")
		return err != nil &&
			strings.Contains(err.Error(), `failed calling webhook "guard.e2e.example.com"`), fmt.Sprint(out, err)
	})
	s.refused(`service "nobody" not found`, "create", "configmap", "c")
	s.apply(hook + "Ignore")
	harness.Eventually(t, "its failure is ignored", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "create", "configmap", "c")
		return err == nil, fmt.Sprint(out, err)
	})
}
