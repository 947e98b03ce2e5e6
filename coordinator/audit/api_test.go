package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	shoaladmission "github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/audit"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/registry"
)

const everything = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: RequestResponse, resources: [{group: "", resources: [configmaps]}]}
- level: Metadata
`

// Each request leaves its stages in the log and at the webhook: who, on whose
// behalf, which object, the answer, and what authorization and admission noted
// (ACC-15, PSA-5).
func TestRequestsAreRecorded(t *testing.T) {
	dir := t.TempDir()
	sent := &receiver{}
	hook := httptest.NewServer(sent)
	defer hook.Close()
	c := config.Default().Audit
	c.AuditPolicyFile = write(t, dir, "policy.yaml", everything)
	c.AuditWebhookConfigFile = write(t, dir, "webhook.kubeconfig", fmt.Sprintf(
		`{clusters: [{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}`,
		hook.URL))
	c.AuditWebhookMode = "blocking"
	recorded, err := audit.New(c, dir, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	s := apitest.Start(t, apitest.Options{
		Kinds:  registry.Kinds(),
		Config: func(c *apiserver.Config) { c.AuditBackend, c.AuditRules = recorded.Backend, recorded.Rules },
		Wrap: func(s apiserver.Security) apiserver.Security {
			s.Authorizer = notBob{}
			s.Handlers = map[string]http.Handler{
				"/debug/panic": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a mistake") })}
			return s
		},
		Admission: func(s *apiserver.Server) []admission.Interface {
			return plugins(t, s)
		},
	})
	do(t, s)

	// The end of the watch is recorded after the client has left.
	ended := func(e auditv1.Event) bool { return e.Verb == "watch" && e.Stage == auditv1.StageResponseComplete }
	for deadline := time.Now().Add(time.Minute); !slices.ContainsFunc(sent.all(), ended) &&
		time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	inLog := readLog(t, filepath.Join(dir, "audit.log"))
	for name, events := range map[string][]auditv1.Event{"log": inLog, "webhook": sent.all()} {
		t.Run(name, func(t *testing.T) { checkEvents(t, events) })
	}
}

// do makes one request of each sort.
func do(t *testing.T, s *apitest.Server) {
	t.Helper()
	ctx := context.Background()
	admin := s.Kubernetes(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "watched", Labels: map[string]string{"pod-security.kubernetes.io/audit": "restricted"},
	}}, metav1.CreateOptions{})
	must(err)
	_, err = admin.CoreV1().ServiceAccounts("watched").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(err)
	_, err = admin.CoreV1().ConfigMaps("watched").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Data: map[string]string{"k": "v"}},
		metav1.CreateOptions{})
	must(err)
	_, err = admin.CoreV1().Pods("watched").Create(ctx,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "loose"}, Spec: corev1.PodSpec{
			ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}, metav1.CreateOptions{})
	must(err)
	w, err := admin.CoreV1().ConfigMaps("watched").Watch(ctx, metav1.ListOptions{})
	must(err)
	<-w.ResultChan()
	w.Stop()

	if _, err := admin.Discovery().RESTClient().Get().AbsPath("/debug/panic").DoRaw(ctx); err == nil {
		t.Error("a panic was answered as a success")
	}

	asBob := rest.CopyConfig(s.Config)
	asBob.Impersonate.UserName = "bob"
	bob, err := kubernetes.NewForConfig(asBob)
	must(err)
	if _, err := bob.CoreV1().Secrets("watched").Get(ctx, "hidden", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("bob: %v", err)
	}
	stranger := rest.AnonymousClientConfig(s.Config)
	stranger.BearerToken = "guess"
	nobody, err := kubernetes.NewForConfig(stranger)
	must(err)
	if _, err := nobody.CoreV1().Pods("watched").Get(ctx, "unseen", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("nobody: %v", err)
	}
}

func checkEvents(t *testing.T, events []auditv1.Event) {
	t.Helper()
	one := func(stage auditv1.Stage, verb, resource, name string) auditv1.Event {
		t.Helper()
		for _, e := range events {
			if e.Stage == stage && e.Verb == verb && e.ObjectRef != nil && e.ObjectRef.Resource == resource &&
				e.ObjectRef.Name == name {
				return e
			}
		}
		t.Errorf("no event: %s %s %s %q", stage, verb, resource, name)
		return auditv1.Event{ResponseStatus: &metav1.Status{}}
	}
	one(auditv1.StageRequestReceived, "create", "configmaps", "") // the name is in the body
	made := one(auditv1.StageResponseComplete, "create", "configmaps", "made")
	if made.ResponseStatus.Code != 201 || made.User.Username != "admin" || made.RequestObject == nil ||
		made.Annotations["authorization.k8s.io/decision"] != "allow" {
		t.Errorf("create: %+v", made)
	}
	loose := one(auditv1.StageResponseComplete, "create", "pods", "loose")
	if loose.RequestObject != nil || loose.Annotations["pod-security.kubernetes.io/audit-violations"] == "" {
		t.Errorf("pod: %+v", loose.Annotations)
	}
	one(auditv1.StageResponseStarted, "watch", "configmaps", "")
	one(auditv1.StageResponseComplete, "watch", "configmaps", "")
	denied := one(auditv1.StageResponseComplete, "get", "secrets", "hidden")
	if denied.ResponseStatus.Code != 403 || denied.User.Username != "admin" || denied.ImpersonatedUser == nil ||
		denied.ImpersonatedUser.Username != "bob" ||
		denied.Annotations["authorization.k8s.io/decision"] != "forbid" {
		t.Errorf("denied: %+v", denied)
	}
	if i := slices.IndexFunc(events, func(e auditv1.Event) bool { return e.Stage == auditv1.StagePanic }); i < 0 ||
		events[i].RequestURI != "/debug/panic" || events[i].ResponseStatus.Code != 500 || events[i].User.Username != "admin" {
		t.Errorf("panic: event %d", i)
	}
	unknown := one(auditv1.StageResponseStarted, "get", "pods", "unseen")
	if unknown.ResponseStatus.Code != 401 || unknown.User.Username != "" {
		t.Errorf("unauthenticated: %+v", unknown)
	}
}

// notBob allows everything to all but bob.
type notBob struct{}

func (notBob) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "bob" {
		return authorizer.DecisionDeny, "not bob", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func plugins(t *testing.T, s *apiserver.Server) []admission.Interface {
	t.Helper()
	list, err := shoaladmission.Chain(
		shoaladmission.Config{Client: s.Client(), Informers: s.Informers(), Authorizer: notBob{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s.Informers().Start(ctx.Done())
	return list
}

// receiver is the other end of the webhook.
type receiver struct {
	mu     sync.Mutex
	events []auditv1.Event
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var list auditv1.EventList
	if err := json.NewDecoder(req.Body).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, list.Items...)
}

func (r *receiver) all() []auditv1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events
}

func readLog(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var events []auditv1.Event
	for in := json.NewDecoder(bufio.NewReader(f)); ; {
		var e auditv1.Event
		if err := in.Decode(&e); errors.Is(err, io.EOF) {
			return events
		} else if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
