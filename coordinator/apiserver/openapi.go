package apiserver

import (
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/applyconfigurations"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
)

// openAPI serves /openapi.
type openAPI struct{}

func (s *Server) typeConverter() (managedfields.TypeConverter, error) {
	return applyconfigurations.NewTypeConverter(s.env.Scheme), nil
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

func (s *Server) serveOpenAPI(agg, builtin *genericapiserver.GenericAPIServer, crds *apiextensionsapiserver.CustomResourceDefinitions) error {
	return nil
}
