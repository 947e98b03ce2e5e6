package abac

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// policy is one line of the file, abac.authorization.kubernetes.io/v1beta1.
type policy struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       spec   `json:"spec"`
}

// spec lets users do something; "*" stands for all, an empty field for none.
type spec struct {
	User            string `json:"user,omitempty"`
	Group           string `json:"group,omitempty"`
	Readonly        bool   `json:"readonly,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	NonResourcePath string `json:"nonResourcePath,omitempty"`
}

// Authorizer allows what any policy allows. Use Load.
type Authorizer struct{ policies []spec }

// Load reads a policy file. Lines that are empty or begin with # say nothing.
func Load(file string) (*Authorizer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("ABAC policy: %w", err)
	}
	a := &Authorizer{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		p, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("ABAC policy %s line %d: %w", file, n, err)
		}
		a.policies = append(a.policies, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("ABAC policy %s: %w", file, err)
	}
	return a, nil
}

func parse(line []byte) (spec, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var p policy
	if err := d.Decode(&p); err != nil {
		return spec{}, err
	}
	if p.APIVersion != "abac.authorization.kubernetes.io/v1beta1" || p.Kind != "Policy" {
		return spec{}, fmt.Errorf("it is a %q %q, give a Policy of abac.authorization.kubernetes.io/v1beta1",
			p.APIVersion, p.Kind)
	}
	return p.Spec, nil
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	for i := range a.policies {
		if a.policies[i].allows(attrs) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "No policy matched.", nil
}

func (s *spec) allows(a authorizer.Attributes) bool {
	if !s.meets(a) || s.Readonly && !a.IsReadOnly() {
		return false
	}
	if a.IsResourceRequest() {
		return covers(s.Namespace, a.GetNamespace()) && covers(s.Resource, a.GetResource()) &&
			covers(s.APIGroup, a.GetAPIGroup())
	}
	prefix, wild := strings.CutSuffix(s.NonResourcePath, "*")
	return s.NonResourcePath == a.GetPath() || wild && strings.HasPrefix(a.GetPath(), prefix)
}

// meets tells whether the user is meant: by name, by group, or by both where both are given.
func (s *spec) meets(a authorizer.Attributes) bool {
	u := a.GetUser()
	if u == nil || s.User == "" && s.Group == "" {
		return false
	}
	byName := s.User == "" || covers(s.User, u.GetName())
	byGroup := s.Group == "" || s.Group == "*" || slices.Contains(u.GetGroups(), s.Group)
	return byName && byGroup
}

func covers(pattern, value string) bool { return pattern == "*" || pattern == value }
