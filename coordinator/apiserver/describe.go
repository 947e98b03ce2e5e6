package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Description is the OpenAPI of a server's built-in API.
type Description struct {
	// V3 is by path ("apis/apps/v1"); V2 is all in one.
	V3 map[string]*spec3.OpenAPI
	V2 *spec.Swagger
	// Models are all types without texts.
	Models map[string]*spec.Schema
}

// Describe renders the OpenAPI documents of kinds and of the libraries' kinds.
// It runs when the product is built, not when it serves.
func Describe(kinds []kind.Kind, definitions common.GetOpenAPIDefinitions) (*Description, error) {
	s, err := New(Config{Kinds: kinds, ExternalAddress: "127.0.0.1:6443"})
	if err != nil {
		return nil, err
	}
	containers, err := s.installForDescription()
	if err != nil {
		return nil, err
	}
	known, err := everyVersion()
	if err != nil {
		return nil, err
	}
	namer := apiopenapi.NewDefinitionNamer(s.env.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme, known)
	v3 := genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	v3.Info.Title, v3.Info.Version = "Kubernetes", major+"."+minor
	v3.CommonResponses = map[int]*spec3.Response{http.StatusUnauthorized: {
		ResponseProps: spec3.ResponseProps{Description: unauthorized}}}
	v3.SecuritySchemes = spec3.SecuritySchemes{bearerToken: {SecuritySchemeProps: spec3.SecuritySchemeProps{
		Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication"}}}
	v2 := genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	v2.Info.Title, v2.Info.Version = "Kubernetes", major+"."+minor
	v2.CommonResponses = map[int]spec.Response{http.StatusUnauthorized: {
		ResponseProps: spec.ResponseProps{Description: unauthorized}}}
	bearer := &spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{
		Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication"}}
	v2.SecurityDefinitions = &spec.SecurityDefinitions{bearerToken: bearer}
	v2.DefaultSecurity = []map[string][]string{{bearerToken: {}}}
	out := &Description{V3: map[string]*spec3.OpenAPI{}, Models: map[string]*spec.Schema{}}
	var all []*restful.WebService
	seen := map[string]bool{}
	for _, c := range containers {
		for _, ws := range c.RegisteredWebServices() {
			path := strings.TrimPrefix(ws.RootPath(), "/")
			if seen[path] {
				continue
			}
			seen[path] = true
			all = append(all, ws)
			doc, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}),
				v3)
			if err != nil {
				return nil, fmt.Errorf("describe %s: %w", path, err)
			}
			out.V3[path] = doc
			if doc.Components != nil {
				for name, schema := range doc.Components.Schemas {
					forgetInternal(schema)
					if everywhere[name] {
						doc.Components.Schemas[name] = ofVersion(schema, path)
					}
				}
				maps.Copy(out.Models, doc.Components.Schemas)
			}
		}
	}
	slices.SortFunc(all, func(a, b *restful.WebService) int { return cmp.Compare(a.RootPath(), b.RootPath()) })
	if out.V2, err = builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(all), v2); err != nil {
		return nil, fmt.Errorf("describe in v2: %w", err)
	}
	for name, schema := range out.V2.Definitions {
		forgetInternal(&schema)
		out.V2.Definitions[name] = schema
	}
	out.V2.Definitions = handler.PruneDefaults(out.V2.Definitions)
	for name, schema := range out.Models {
		out.Models[name] = bare(schema)
	}
	return out, nil
}

// everyVersion has what every version of every group has (DeleteOptions, WatchEvent),
// also of versions that are not served, as upstream tells of them.
func everyVersion() (*runtime.Scheme, error) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, admissionv1.AddToScheme,
		admissionv1beta1.AddToScheme, imagepolicyv1alpha1.AddToScheme} {
		if err := add(types); err != nil {
			return nil, err
		}
	}
	out := runtime.NewScheme()
	for _, gv := range types.PrioritizedVersionsAllGroups() {
		metav1.AddToGroupVersion(out, gv)
	}
	return out, nil
}

// What every operation answers to a stranger, and how one is known.
const (
	unauthorized = "Unauthorized"
	bearerToken  = "BearerToken"
)

// everywhere are the models that are a kind of every group version.
var everywhere = map[string]bool{
	"io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions": true, "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent": true,
}

// ofVersion returns such a model with the kinds of core and of the group version that
// a document is about ("apis/apps/v1").
func ofVersion(s *spec.Schema, path string) *spec.Schema {
	list, _ := s.Extensions[kindsKey].([]any)
	out := *s
	out.Extensions = maps.Clone(s.Extensions)
	out.Extensions[kindsKey] = slices.DeleteFunc(slices.Clone(list), func(entry any) bool {
		e, _ := entry.(map[string]any)
		group, version := e["group"], e["version"]
		return (group != "" || version != "v1") && path != fmt.Sprintf("apis/%s/%s", group, version)
	})
	return &out
}

// kindsKey is where a model tells which kinds it is of.
const kindsKey = "x-kubernetes-group-version-kind"

// forgetInternal leaves the versions that a model is served in: with us a stored
// version is its group's internal one too.
func forgetInternal(s *spec.Schema) {
	list, ok := s.Extensions[kindsKey].([]any)
	if !ok {
		return
	}
	s.Extensions = maps.Clone(s.Extensions)
	s.Extensions[kindsKey] = slices.DeleteFunc(slices.Clone(list), func(entry any) bool {
		e, ok := entry.(map[string]any)
		return ok && e["version"] == runtime.APIVersionInternal
	})
}

// discoveryRoutes are the paths of OpenID discovery, which no API group has.
func discoveryRoutes() *restful.Container {
	c := restful.NewContainer()
	for _, r := range []struct{ path, produces, operation, doc string }{
		{"/.well-known/openid-configuration", restful.MIME_JSON, "getServiceAccountIssuerOpenIDConfiguration",
			"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'"},
		{"/openid/v1/jwks", "application/jwk-set+json", "getServiceAccountIssuerOpenIDKeyset",
			"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)"},
	} {
		ws := new(restful.WebService).Path(r.path).Produces(r.produces)
		ws.Route(ws.GET("").To(func(*restful.Request, *restful.Response) {}).Doc(r.doc).Operation(r.operation).
			Returns(http.StatusOK, "OK", ""))
		c.Add(ws)
	}
	return c
}

func (s *Server) installForDescription() ([]*restful.Container, error) {
	base, err := s.baseConfig(Security{})
	if err != nil {
		return nil, err
	}
	crds, err := s.newCRDServer(base)
	if err != nil {
		return nil, err
	}
	builtin, err := s.newBuiltinServer(base, crds.GenericAPIServer)
	if err != nil {
		return nil, err
	}
	if err := s.newAggregator(base, builtin, crds); err != nil {
		return nil, err
	}
	return []*restful.Container{
		builtin.Handler.GoRestfulContainer, crds.GenericAPIServer.Handler.GoRestfulContainer,
		s.aggregator.GenericAPIServer.Handler.GoRestfulContainer, discoveryRoutes(),
	}, nil
}

// bare returns a copy of a schema without what server-side apply does not read. It reads
// formats: a time may be any scalar to it.
func bare(s *spec.Schema) *spec.Schema {
	if s == nil {
		return nil
	}
	out := *s
	out.Description, out.Title, out.Required, out.Example = "", "", nil, nil
	out.Enum = nil
	if s.Properties != nil {
		out.Properties = make(map[string]spec.Schema, len(s.Properties))
		for name, p := range s.Properties {
			out.Properties[name] = *bare(&p)
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		out.Items = &spec.SchemaOrArray{Schema: bare(s.Items.Schema)}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		out.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: bare(s.AdditionalProperties.Schema)}
	}
	out.AllOf = make([]spec.Schema, 0, len(s.AllOf))
	for i := range s.AllOf {
		out.AllOf = append(out.AllOf, *bare(&s.AllOf[i]))
	}
	if len(out.AllOf) == 0 {
		out.AllOf = nil
	}
	return &out
}
