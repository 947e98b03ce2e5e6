package openapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

//go:embed all:data
var data embed.FS

// Files in data. V3 documents are "v3/" and the path with dots for slashes.
const (
	V2JSON  = "v2.json.gz"
	V2Proto = "v2.pb.gz"
	Models  = "models.json.gz"
	v3Dir   = "v3"
	suffix  = ".json.gz"
)

// Document is one document, compressed with gzip.
type Document struct {
	GZ   []byte
	Hash string
}

// Read returns a document; fs.ErrNotExist when there is none of that name.
func Read(name string) (Document, error) {
	gz, err := data.ReadFile("data/" + name)
	if err != nil {
		return Document{}, err
	}
	return Document{GZ: gz, Hash: hash(gz)}, nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return strings.ToUpper(hex.EncodeToString(sum[:16]))
}

// Plain returns the document's text.
func (d Document) Plain() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(d.GZ))
	if err != nil {
		return nil, fmt.Errorf("unpack OpenAPI document: %w", err)
	}
	return io.ReadAll(r)
}

// V3Name returns the file of an OpenAPI v3 path ("apis/apps/v1").
func V3Name(path string) string { return v3Dir + "/" + strings.ReplaceAll(path, "/", "_") + suffix }

// V3 returns the hash of each OpenAPI v3 document by its path ("apis/apps/v1").
var V3 = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	entries, _ := fs.ReadDir(data, "data/"+v3Dir) // none before the first generation
	for _, e := range entries {
		path := strings.ReplaceAll(strings.TrimSuffix(e.Name(), suffix), "_", "/")
		if doc, err := Read(v3Dir + "/" + e.Name()); err == nil {
			out[path] = doc.Hash
		}
	}
	return out
})

// LoadModels returns the types' schemas, without texts, for server-side apply.
func LoadModels() (map[string]*spec.Schema, error) {
	doc, err := Read(Models)
	if err != nil {
		return map[string]*spec.Schema{}, nil // before the first generation
	}
	plain, err := doc.Plain()
	if err != nil {
		return nil, err
	}
	models := map[string]*spec.Schema{}
	if err := json.Unmarshal(plain, &models); err != nil {
		return nil, fmt.Errorf("read OpenAPI models: %w", err)
	}
	return models, nil
}
