//go:build openapi

// Command openapi renders the OpenAPI documents of the built-in API into the
// directory that is its argument. hack/update-openapi.sh runs it.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	crdopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/openapi"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/hack/openapi/definitions"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	d, err := apiserver.Describe(registry.Kinds(),
		func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			all := aggregatoropenapi.GetOpenAPIDefinitions(ref)
			maps.Copy(all, crdopenapi.GetOpenAPIDefinitions(ref))
			maps.Copy(all, definitions.GetOpenAPIDefinitions(ref))
			return all
		})
	if err != nil {
		return err
	}
	docs := map[string]any{openapi.Models: d.Models, openapi.V2JSON: d.V2}
	for path, doc := range d.V3 {
		docs[openapi.V3Name(path)] = doc
	}
	for name, doc := range docs {
		data, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, name), data); err != nil {
			return err
		}
		if name == openapi.V2JSON {
			parsed, err := openapi_v2.ParseDocument(data)
			if err != nil {
				return err
			}
			pb, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
			if err != nil {
				return err
			}
			if err := write(filepath.Join(dir, openapi.V2Proto), pb); err != nil {
				return err
			}
		}
	}
	return nil
}

// write compresses without a time stamp, so that equal input gives equal files.
func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
