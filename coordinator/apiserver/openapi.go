package apiserver

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	crdopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/shoal-project/shoal/coordinator/apiserver/openapi"
)

// typeConverter tells server-side apply the structure of the built-in kinds.
func (s *Server) typeConverter() (managedfields.TypeConverter, error) {
	models, err := openapi.LoadModels()
	if err != nil {
		return nil, err
	}
	known, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		return nil, fmt.Errorf("read OpenAPI models: %w", err)
	}
	return converter{TypeConverter: known, deduced: managedfields.NewDeducedTypeConverter(),
		kinds: kindsOf(models)}, nil
}

// converter deduces the structure of a kind that has no model: its lists are
// then atomic. A test keeps that from happening in a release.
type converter struct {
	managedfields.TypeConverter
	deduced managedfields.TypeConverter
	kinds   map[schema.GroupVersionKind]bool
}

func (c converter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if !c.kinds[obj.GetObjectKind().GroupVersionKind()] {
		return c.deduced.ObjectToTyped(obj, opts...)
	}
	return c.TypeConverter.ObjectToTyped(obj, opts...)
}

// TypedToObject returns the object that a typed value was made of, where it is one of a Go
// type. The library makes maps of the whole object instead, at each update once for every
// manager of its fields, to read the version: a fifth of what an update allocates.
func (c converter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	if obj := madeOf(v); obj != nil {
		return obj, nil
	}
	return c.TypeConverter.TypedToObject(v)
}

// reflected are the values that the library makes of objects of Go types. It keeps the
// object in a field, and has no function that tells it.
var reflected, _ = value.NewValueReflect(new(struct{}))

// madeOf is nil for a value of maps.
func madeOf(v *typed.TypedValue) runtime.Object {
	held := reflect.ValueOf(v.AsValue())
	if !held.IsValid() || held.Type() != reflect.TypeOf(reflected) || held.Kind() != reflect.Pointer {
		return nil
	}
	field := held.Elem().FieldByName("Value")
	if !field.IsValid() || !field.CanInterface() {
		return nil
	}
	of, ok := field.Interface().(reflect.Value)
	if !ok || !of.CanAddr() {
		return nil
	}
	obj, _ := of.Addr().Interface().(runtime.Object)
	return obj
}

// kindsOf lists the kinds that models say they are.
func kindsOf(models map[string]*spec.Schema) map[schema.GroupVersionKind]bool {
	out := map[schema.GroupVersionKind]bool{}
	for _, m := range models {
		list, _ := m.Extensions["x-kubernetes-group-version-kind"].([]any)
		for _, entry := range list {
			if e, ok := entry.(map[string]any); ok {
				group, _ := e["group"].(string)
				version, _ := e["version"].(string)
				kind, _ := e["kind"].(string)
				out[schema.GroupVersionKind{Group: group, Version: version, Kind: kind}] = true
			}
		}
	}
	return out
}

func crdOpenAPI() *common.OpenAPIV3Config {
	return openAPIConfig(apiextensionsapiserver.Scheme, crdopenapi.GetOpenAPIDefinitions)
}

func aggregatorOpenAPI() *common.OpenAPIV3Config {
	return openAPIConfig(aggregatorscheme.Scheme, aggregatoropenapi.GetOpenAPIDefinitions)
}

// openAPIConfig describes the types of a library's server. Definitions are left
// to be built when asked for and not kept.
func openAPIConfig(scheme *runtime.Scheme, definitions common.GetOpenAPIDefinitions) *common.OpenAPIV3Config {
	c := genericapiserver.DefaultOpenAPIV3Config(definitions, apiopenapi.NewDefinitionNamer(scheme))
	c.Definitions = nil
	return c
}

// openAPI serves /openapi/v2 and /openapi/v3: static documents for the built-in
// groups; those of custom resources are rendered when they are asked for, those
// of aggregated servers (v3) are theirs. The one of v2 is kept.
type openAPI struct {
	crds    crdlisters.CustomResourceDefinitionLister
	builtin builtinDocuments
	merged  mergedDocuments
	remote  *remoteOpenAPI
	log     *slog.Logger
}

func (s *Server) serveOpenAPI(agg *genericapiserver.GenericAPIServer,
	crds *apiextensionsapiserver.CustomResourceDefinitions, services listers.APIServiceLister) {
	o := &openAPI{crds: crds.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister(), log: s.cfg.Log,
		builtin: builtinDocuments{enabled: s.enabled},
		remote: &remoteOpenAPI{services: services, resolve: s.resolver, limit: remoteLimit, log: s.cfg.Log,
			certFile: s.cfg.FrontProxyCertFile, keyFile: s.cfg.FrontProxyKeyFile}}
	mux := agg.Handler.NonGoRestfulMux
	mux.HandleFunc("/openapi/v2", o.serveV2)
	mux.HandleFunc("/openapi/v3", o.serveIndex)
	mux.HandlePrefix("/openapi/v3/", http.HandlerFunc(o.serveV3))
}

// established returns the CRDs of a group version that are served, sorted by
// name; all of them for an empty path.
func (o *openAPI) established(path string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	crds, err := o.crds.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var out []*apiextensionsv1.CustomResourceDefinition
	for _, crd := range crds {
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Served && (path == "" || path == crdPath(crd, v.Name)) {
				out = append(out, crd)
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func crdPath(crd *apiextensionsv1.CustomResourceDefinition, version string) string {
	return "apis/" + crd.Spec.Group + "/" + version
}

// crdHash changes whenever one of the CRDs does, its status too: that tells the
// names that are described.
func crdHash(crds []*apiextensionsv1.CustomResourceDefinition) string {
	h := sha256.New()
	for _, crd := range crds {
		_, _ = fmt.Fprintf(h, "%s/%s;", crd.UID, crd.ResourceVersion)
	}
	return strings.ToUpper(hex.EncodeToString(h.Sum(nil)[:16]))
}

// serveIndex lists the documents with their hashes.
func (o *openAPI) serveIndex(w http.ResponseWriter, r *http.Request) {
	hashes := o.builtin.v3()
	crds, err := o.established("")
	if err != nil {
		o.fail(w, err)
		return
	}
	byPath := map[string][]*apiextensionsv1.CustomResourceDefinition{}
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				byPath[crdPath(crd, v.Name)] = append(byPath[crdPath(crd, v.Name)], crd)
			}
		}
	}
	for path, crds := range byPath {
		hashes[path] = crdHash(crds)
	}
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for path, hash := range hashes {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: v3URL(path, hash)}
	}
	remote, err := o.remote.list(r.Context())
	if err != nil {
		o.fail(w, err)
		return
	}
	for path, url := range remote {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: url}
	}
	data, err := json.Marshal(index)
	if err != nil {
		o.fail(w, err)
		return
	}
	send(w, r, answer{contentType: "application/json", plain: data})
}

func v3URL(path, hash string) string {
	return "/openapi/v3/" + path + "?" + url.Values{"hash": {hash}}.Encode()
}

// serveV3 serves the document of one group version.
func (o *openAPI) serveV3(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	if service := o.remote.of(path); service != nil {
		o.remote.serve(w, r, service)
		return
	}
	doc, err := o.document(path)
	if errors.Is(err, errNoDocument) {
		w.WriteHeader(http.StatusNotFound) // without a text, as upstream
		return
	}
	if err != nil {
		o.fail(w, err)
		return
	}
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != doc.hash {
			http.Redirect(w, r, v3URL(path, doc.hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
	}
	if wantsProto(r, "application/com.github.proto-openapi.spec.v3") {
		if doc, err = doc.asProto(); err != nil {
			o.fail(w, err)
			return
		}
	}
	send(w, r, doc)
}

var errNoDocument = errors.New("no such document")

func (o *openAPI) document(path string) (answer, error) {
	if hash, ok := o.builtin.v3()[path]; ok {
		doc, err := o.builtin.read(openapi.V3Name(path))
		return answer{contentType: "application/json", gz: doc.GZ, hash: hash}, err
	}
	crds, err := o.established(path)
	if err != nil {
		return answer{}, err
	}
	if len(crds) == 0 {
		return answer{}, errNoDocument
	}
	version := path[strings.LastIndex(path, "/")+1:]
	specs := make([]*spec3.OpenAPI, 0, len(crds))
	for _, crd := range crds {
		doc, err := builder.BuildOpenAPIV3(crd, version, builder.Options{V2: false})
		if err != nil {
			return answer{}, fmt.Errorf("describe %s: %w", crd.Name, err)
		}
		specs = append(specs, doc)
	}
	merged, err := builder.MergeSpecsV3(specs...)
	if err != nil {
		return answer{}, fmt.Errorf("describe %s: %w", path, err)
	}
	data, err := json.Marshal(merged)
	return answer{contentType: "application/json", plain: data, hash: crdHash(crds)}, err
}

// serveV2 serves the one document of OpenAPI v2.
func (o *openAPI) serveV2(w http.ResponseWriter, r *http.Request) {
	crds, err := o.established("")
	if err != nil {
		o.fail(w, err)
		return
	}
	asProto := wantsProto(r, "application/com.github.proto-openapi.spec.v2")
	name, contentType := openapi.V2JSON, "application/json"
	if asProto {
		name, contentType = openapi.V2Proto, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	}
	doc, err := o.builtin.read(name)
	if err != nil {
		o.fail(w, err)
		return
	}
	out := answer{contentType: contentType, gz: doc.GZ, hash: doc.Hash}
	if len(crds) > 0 {
		out.hash = doc.Hash + crdHash(crds)
		out.gz, err = o.merged.get(name, out.hash, func() ([]byte, error) { return o.mergeV2(crds, asProto) })
		if err != nil {
			o.fail(w, err)
			return
		}
	}
	send(w, r, out)
}

// mergedDocuments keeps the last document of each name that custom resources are
// in, compressed. To render one takes a second of processor time and tens of
// megabytes, more with many definitions, and every user may ask for it: so that is
// done once for all who ask, and for one document at a time.
type mergedDocuments struct {
	mu   sync.Mutex
	kept map[string]openapi.Document
}

func (m *mergedDocuments) get(name, hash string, render func() ([]byte, error)) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if doc, ok := m.kept[name]; ok && doc.Hash == hash {
		return doc.GZ, nil
	}
	text, err := render()
	if err != nil {
		return nil, err
	}
	doc, err := compress(text)
	if err != nil {
		return nil, err
	}
	doc.Hash = hash
	if m.kept == nil {
		m.kept = map[string]openapi.Document{}
	}
	m.kept[name] = doc
	return doc.GZ, nil
}

// compress makes a document of a text, without its hash.
func compress(text []byte) (openapi.Document, error) {
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	if _, err := w.Write(text); err != nil {
		return openapi.Document{}, err
	}
	if err := w.Close(); err != nil {
		return openapi.Document{}, err
	}
	return openapi.Document{GZ: gz.Bytes()}, nil
}

// mergeV2 renders the whole document.
func (o *openAPI) mergeV2(crds []*apiextensionsv1.CustomResourceDefinition, asProto bool) ([]byte, error) {
	doc, err := o.builtin.read(openapi.V2JSON)
	if err != nil {
		return nil, err
	}
	plain, err := doc.Plain()
	if err != nil {
		return nil, err
	}
	static := &spec.Swagger{}
	if err := json.Unmarshal(plain, static); err != nil {
		return nil, fmt.Errorf("read OpenAPI v2: %w", err)
	}
	var custom []*spec.Swagger
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			doc, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true})
			if err != nil {
				return nil, fmt.Errorf("describe %s: %w", crd.Name, err)
			}
			// As in the static document, or what is equal would be there twice.
			doc.Definitions = handler.PruneDefaults(doc.Definitions)
			custom = append(custom, doc)
		}
	}
	merged, err := builder.MergeSpecs(static, custom...)
	if err != nil {
		return nil, fmt.Errorf("merge OpenAPI v2: %w", err)
	}
	data, err := json.Marshal(merged)
	if err != nil || !asProto {
		return data, err
	}
	return encodeV2(data)
}

func encodeV2(doc []byte) ([]byte, error) {
	parsed, err := openapi_v2.ParseDocument(doc)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v2: %w", err)
	}
	return proto.Marshal(parsed)
}

func (o *openAPI) fail(w http.ResponseWriter, err error) {
	o.log.Warn("OpenAPI document failed", "err", err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// wantsProto tells whether the first type that the client accepts is a protobuf.
func wantsProto(r *http.Request, prefix string) bool {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	return strings.HasPrefix(strings.TrimSpace(first), prefix)
}

// answer is a document, compressed or plain.
type answer struct {
	contentType, hash string
	gz, plain         []byte
}

func (a answer) asProto() (answer, error) {
	plain, err := a.text()
	if err != nil {
		return a, err
	}
	pb, err := handler3.ToV3ProtoBinary(plain)
	return answer{contentType: "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", hash: a.hash,
		plain: pb}, err
}

func (a answer) text() ([]byte, error) {
	if a.gz == nil {
		return a.plain, nil
	}
	return openapi.Document{GZ: a.gz}.Plain()
}

// send writes a document, as it lies on disk when the client takes gzip.
func send(w http.ResponseWriter, r *http.Request, a answer) {
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Add("Vary", "Accept")
	h.Add("Vary", "Accept-Encoding")
	if a.hash != "" {
		tag := strconv.Quote(a.hash)
		h.Set("Etag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	body := a.gz
	if a.gz != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
	} else {
		plain, err := a.text()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		body = plain
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = bytes.NewReader(body).WriteTo(w)
}
