package connect

import (
	"net/http"

	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Pod returns the pod subresources that reach into a pod, by name.
func Pod(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
	k := kubelets{
		pods:       stores["/pods"],
		nodes:      stores["/nodes"],
		transport:  env.KubeletTransport,
		authorizer: env.Authorizer,
	}
	return map[string]rest.Storage{
		"log":         &logREST{k},
		"exec":        &execREST{k},
		"attach":      &attachREST{k},
		"portforward": &portForwardREST{k},
		"proxy":       newPodProxy(k),
	}
}

// NodeProxy is nodes/proxy: requests to a node's agent, or to a port beside it.
func NodeProxy(env *kind.Env, stores kind.Stores) rest.Storage {
	return newNodeProxy(kubelets{
		nodes:      stores["/nodes"],
		transport:  func(node string) http.RoundTripper { return guardTransport(env.KubeletTransport(node)) },
		authorizer: env.Authorizer,
	})
}

// ServiceProxy is services/proxy: requests to one ready endpoint of a Service.
func ServiceProxy(stores kind.Stores) rest.Storage {
	return newServiceProxy(serviceProxy{
		services:  stores["/services"],
		endpoints: stores["/endpoints"],
		pods:      stores["/pods"],
	})
}
