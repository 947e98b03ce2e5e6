package abac

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const head = `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":`

func load(t *testing.T, lines ...string) (*Authorizer, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

// ACC-9 and upstream's examples.
func TestAuthorize(t *testing.T) {
	a, err := load(t, "# who may what", "",
		head+`{"user":"bob","namespace":"projectCaribou","resource":"pods","readonly":true}}`,
		head+`{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}}`,
		head+`{"group":"system:authenticated","readonly":true,"nonResourcePath":"/api*"}}`,
		head+`{"user":"carl","group":"ops","namespace":"*","resource":"nodes","apiGroup":""}}`,
	)
	if err != nil {
		t.Fatal(err)
	}
	for request, want := range map[string]authorizer.Decision{
		"bob get projectCaribou pods":    authorizer.DecisionAllow,
		"bob create projectCaribou pods": authorizer.DecisionNoOpinion,
		"bob update projectCaribou pods": authorizer.DecisionNoOpinion,
		"bob get projectFish pods":       authorizer.DecisionNoOpinion,
		"alice delete any things":        authorizer.DecisionAllow,
		"alice get - /metrics":           authorizer.DecisionNoOpinion,
		"alice get - /apis/x":            authorizer.DecisionAllow,
		"alice post - /apis/x":           authorizer.DecisionNoOpinion,
		"carl get x nodes":               authorizer.DecisionNoOpinion,
		"carl+ops get x nodes":           authorizer.DecisionAllow,
		"dora+ops get x nodes":           authorizer.DecisionNoOpinion,
	} {
		w := strings.Fields(request)
		name, group, _ := strings.Cut(w[0], "+")
		attrs := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: []string{"system:authenticated", group}}, Verb: w[1],
			Namespace: w[2], Resource: w[3], ResourceRequest: true}
		if strings.HasPrefix(w[3], "/") {
			attrs = authorizer.AttributesRecord{User: attrs.User, Verb: w[1], Path: w[3]}
		}
		if got, _, err := a.Authorize(context.Background(), attrs); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", request, got, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	for line, want := range map[string]string{
		`{"user":"bob"}`:                      `line 1: json: unknown field "user"`,
		head + `{"users":"bob"}}`:             `unknown field "users"`,
		`{"apiVersion":"v1","kind":"Policy"}`: "give a Policy of abac.authorization.kubernetes.io/v1beta1",
		head + `{"user":"bob"`:                "line 1",
	} {
		if _, err := load(t, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + `{"user":"bob","namespace":"*"}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(_ *testing.T, line []byte) { _, _ = parse(line) })
}
