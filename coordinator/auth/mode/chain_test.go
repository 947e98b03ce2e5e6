package mode

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/shoal-project/shoal/coordinator/config"
)

// service allows anna, denies bert and has no opinion on others.
func service(t *testing.T, asked *[]string) (kubeconfig string, stop func()) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		*asked = append(*asked, review.Spec.User)
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: review.Spec.User == "anna",
			Denied: review.Spec.User == "bert", Reason: "said the service"}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return write(t, filepath.Join(t.TempDir(), "kubeconfig"), fmt.Sprintf(
		`{"clusters": [{"name": "a", "cluster": {"server": %q}}], "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}`,
		s.URL)), s.Close
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// says is an authorizer without an opinion but with a reason.
func says(reason string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, reason, nil
	})
}

func newChain(c config.Authorization, rbac authorizer.Authorizer) (*Chain, error) {
	return New(Config{Authorization: c, Node: says("node"), RBAC: rbac, Log: slog.Default()})
}

func ask(c *Chain, name, verb string) (authorizer.Decision, string) {
	decision, reason, _ := c.Authorize(context.Background(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: name}, Verb: verb,
		Resource: "pods", APIVersion: "v1", Namespace: "ns", ResourceRequest: true,
	})
	return decision, reason
}

func TestFlags(t *testing.T) {
	var asked []string
	kubeconfig, _ := service(t, &asked)
	c := config.Default().Authorization
	chain, err := newChain(c, says("rbac"))
	if err != nil {
		t.Fatal(err)
	}
	if decision, reason := ask(chain, "anna", "get"); decision != authorizer.DecisionNoOpinion ||
		reason != "node\nrbac" || !chain.Has("RBAC") || chain.Has("Webhook") {
		t.Errorf("default: %v %q", decision, reason)
	}
	c.AuthorizationMode, c.AuthorizationWebhookConfigFile, c.AuthorizationWebhookVersion = []string{"Node", "Webhook",
		"RBAC"}, kubeconfig, "v1"
	if chain, err = newChain(c, authorizerfactory.NewAlwaysAllowAuthorizer()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]authorizer.Decision{"anna": authorizer.DecisionAllow,
		"bert": authorizer.DecisionDeny, "carl": authorizer.DecisionAllow} {
		for range 2 {
			if decision, reason := ask(chain, name, "get"); decision != want {
				t.Errorf("%s: %v %q", name, decision, reason)
			}
		}
	}
	if len(asked) != 3 {
		t.Errorf("asked of %v, want each once", asked)
	}
	for want, change := range map[string]func(*config.Authorization){
		"authorizationPolicyFile is missing": func(c *config.Authorization) { c.AuthorizationMode = []string{"ABAC"} },
		`Unsupported value: "AlwaysAllow"`:   func(c *config.Authorization) { c.AuthorizationMode = []string{"AlwaysAllow"} },
		"Duplicate value":                    func(c *config.Authorization) { c.AuthorizationMode = []string{"RBAC", "RBAC"} },
		"kubeConfigFile":                     func(c *config.Authorization) { c.AuthorizationWebhookConfigFile = "" },
	} {
		bad := c
		change(&bad)
		if _, err := newChain(bad, says("rbac")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

const structured = `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: service.example.com
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    cacheAuthorizedRequests: false
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: request.resourceAttributes.verb == '%s'
- {type: RBAC, name: rbac}
`

// Match conditions keep requests from the service, its absence denies those that
// match, and the file's changes count.
func TestFile(t *testing.T) {
	var asked []string
	kubeconfig, stop := service(t, &asked)
	file := write(t, filepath.Join(t.TempDir(), "authorization.yaml"), fmt.Sprintf(structured, kubeconfig, "delete"))
	chain, err := newChain(config.Authorization{AuthorizationConfig: file}, says("rbac"))
	if err != nil {
		t.Fatal(err)
	}
	if decision, _ := ask(chain, "anna", "get"); decision != authorizer.DecisionNoOpinion || len(asked) != 0 {
		t.Errorf("get: %v, asked %v", decision, asked)
	}
	if decision, _ := ask(chain, "anna", "delete"); decision != authorizer.DecisionAllow {
		t.Errorf("delete: %v", decision)
	}
	stop()
	if decision, _ := ask(chain, "anna", "delete"); decision != authorizer.DecisionDeny {
		t.Errorf("delete without the service: %v", decision)
	}

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); chain.Run(ctx, 5*time.Millisecond) }()
	defer func() { cancel(); <-done }()
	write(t, file, "authorizers: nonsense")
	write(t, file, fmt.Sprintf(structured, kubeconfig, "create"))
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if decision, _ := ask(chain, "anna", "delete"); decision == authorizer.DecisionNoOpinion {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the changed file is not used")
		}
	}
}
