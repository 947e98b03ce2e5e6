package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Fields to select by are looked for in structural schemas only.
func TestSelectableFieldsOfBadSchema(t *testing.T) {
	s, ctx := start(t)
	client := s.Client().CoreV1().RESTClient()
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	definition := func(schemas ...string) []byte {
		var versions []string
		for i, schema := range schemas {
			versions = append(versions, fmt.Sprintf(`{"name":"v%d","served":true,"storage":%t,"schema":%s,
				"selectableFields":[{"jsonPath":".spec.a"}]}`, i+1, i == 0, schema))
		}
		return fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
			"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","scope":"Cluster",
			"names":{"plural":"as","kind":"A"},"versions":[%s]}}`, strings.Join(versions, ","))
	}
	const good = `{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
		"properties":{"a":{"type":"string"}}}}}}`
	const loose = `{"openAPIV3Schema":{"type":"object","items":[{"type":"string"}]}}`
	for name, c := range map[string]struct {
		schemas []string
		says    string
	}{
		"of one version":  {[]string{loose}, "openAPIV3Schema"},
		"of the second":   {[]string{good, loose}, "spec.versions[1].schema.openAPIV3Schema"},
		"of all versions": {[]string{loose, loose}, "openAPIV3Schema"},
		"none":            {[]string{`{}`}, "schemas are required"},
	} {
		err := client.Post().AbsPath(path).Body(definition(c.schemas...)).Do(ctx).Error()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := client.Post().AbsPath(path).Body(definition(good)).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	err := client.Patch(types.MergePatchType).AbsPath(path, "as.example.com").
		Body(definition(good, loose)).Do(ctx).Error()
	if !apierrors.IsInvalid(err) {
		t.Errorf("a version that comes later: %v", err)
	}
}
