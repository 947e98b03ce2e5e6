package certificate

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/pki"
)

func tokenOf(data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
		Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

// joins is a cluster with a token, where n1 lives and n2 does not.
func joins(t *testing.T, secret *corev1.Secret) (*fake.Clientset, controller.Reconciler) {
	t.Helper()
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	alive, dead := aNode("n1", "192.0.2.1"), aNode("n2", "192.0.2.2")
	alive.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	dead.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	objects := []runtime.Object{alive, dead}
	if secret != nil {
		objects = append(objects, secret)
	}
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = review.Spec.ResourceAttributes.Subresource == "nodeclient"
		return true, review, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	loop, err := New(controller.Env{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler)},
		Deps{Signer: ca, Lifetime: time.Hour, Reserved: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return client, loop.Reconciler
}

// asks makes a request with the token, and returns what became of it.
func asks(t *testing.T, client *fake.Clientset, r controller.Reconciler, node, uid string) string {
	t.Helper()
	request := &certRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r" + uid, UID: types.UID(uid), CreationTimestamp: metav1.Now()},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    ask(t, pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}),
			Username:   "system:bootstrap:abcdef",
			Groups:     []string{"system:bootstrappers", joinapi.NodesGroup},
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: nodeClient,
		},
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	_ = client.Tracker().Delete(resource, "", request.Name)
	if _, err := requests.Create(t.Context(), request, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 1000 { // until the informer has it
		if _, err := r.Reconcile(t.Context(), request.Name); err != nil {
			t.Fatal(err)
		}
		got, err := requests.Get(t.Context(), request.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Status.Conditions) > 0 {
			c := got.Status.Conditions[0]
			return strings.TrimSpace(fmt.Sprintf("%s %s", c.Type, strings.TrimPrefix(c.Reason, "AutoApproved")))
		}
		time.Sleep(time.Millisecond)
	}
	return "nothing"
}

func secretNow(t *testing.T, client *fake.Clientset) *corev1.Secret {
	t.Helper()
	s, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-abcdef", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestUses: a token is for as many machines as it says. Who was counted and did not
// hear of it is not counted again.
func TestUses(t *testing.T) {
	end := time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)
	client, r := joins(t, tokenOf(map[string]string{joinapi.UsesKey: "2", "expiration": end}))
	for _, step := range []struct{ node, uid, want, left string }{
		{"a", "1", "Approved", "1"},
		{"a", "1", "Approved", "1"}, // its approval was lost
		{"b", "2", "Approved", "0"},
		{"b", "2", "Approved", "0"},
		{"c", "3", "Denied " + joinapi.ReasonTokenUsedUp, "0"},
		{"a", "4", "Denied " + joinapi.ReasonTokenUsedUp, "0"},
	} {
		if got := asks(t, client, r, step.node, step.uid); got != step.want {
			t.Errorf("%s %s: %s, want %s", step.node, step.uid, got, step.want)
		}
		s := secretNow(t, client)
		if left := string(s.Data[joinapi.UsesKey]); left != step.left {
			t.Errorf("%s %s: %s uses left, want %s", step.node, step.uid, left, step.left)
		}
		soon := string(s.Data["expiration"]) != end
		if soon != (step.left == "0") {
			t.Errorf("%s %s: the token ends %s", step.node, step.uid, s.Data["expiration"])
		}
	}
}

// TestWhoseName: a token gives no live node's name away, unless it was made for that.
func TestWhoseName(t *testing.T) {
	for name, tt := range map[string]struct {
		secret *corev1.Secret
		node   string
		want   string
	}{
		"a new one":     {tokenOf(nil), "new", "Approved"},
		"no name":       {tokenOf(nil), "A b", "Denied " + joinapi.ReasonNameInvalid},
		"a dead node's": {tokenOf(nil), "n2", "Approved"},
		"a live node's": {tokenOf(nil), "n1", "Denied " + joinapi.ReasonNameTaken},
		"made for it":   {tokenOf(map[string]string{joinapi.ReplaceKey: "n1"}), "n1", "Approved"},
		"for another": {tokenOf(map[string]string{joinapi.ReplaceKey: "n2"}), "n1",
			"Denied " + joinapi.ReasonNameTaken},
		"no token": {nil, "new", "Denied " + joinapi.ReasonTokenUsedUp},
		"no number": {tokenOf(map[string]string{joinapi.UsesKey: "many"}), "new",
			"Denied " + joinapi.ReasonTokenUsedUp},
	} {
		client, r := joins(t, tt.secret)
		if got := asks(t, client, r, tt.node, "1"); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
