package connect

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Pod returns the pod subresources that reach into a pod, by name.
func Pod(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
	k := podKubelets(env, stores)
	return map[string]rest.Storage{
		"log":         &logREST{k},
		"exec":        &execREST{k},
		"attach":      &attachREST{k},
		"portforward": &portForwardREST{k},
		"proxy":       newPodProxy(k),
	}
}

func podKubelets(env *kind.Env, stores kind.Stores) kubelets {
	return kubelets{
		pods:       stores["/pods"],
		nodes:      stores["/nodes"],
		namespaces: stores["/namespaces"],
		past:       env.PastPod,
		transport:  env.KubeletTransport,
		authorizer: env.Authorizer,
	}
}

// PodReader is main, but has kubectl logs read deleted pods, too: it does so before it asks
// for their logs.
func PodReader(env *kind.Env, stores kind.Stores, main *kind.REST) rest.Storage {
	return &podREST{main, podKubelets(env, stores)}
}

type podREST struct {
	*kind.REST
	kubelets kubelets
}

// Get implements rest.Getter.
func (r *podREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.REST.Get(ctx, name, options)
	if err == nil || !kind.ForLogs(ctx) {
		return obj, err
	}
	p, err := r.kubelets.pastPod(ctx, name, err)
	if err != nil {
		return nil, err
	}
	p.Name = name // by which its log is asked for next
	return p, nil
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
