package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/shoal-project/shoal/coordinator/kubelet"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// kubelets finds the server of the agent that runs a pod.
type kubelets struct {
	pods, nodes, namespaces *genericregistry.Store
	// past returns a pod that was deleted, or nil; nil itself: none is remembered.
	past       func(namespace, name string) *corev1.Pod
	transport  func(node string) http.RoundTripper
	authorizer authorizer.Authorizer
}

// host returns host:port of a node's agent.
func (k *kubelets) host(ctx context.Context, name string) (string, error) {
	obj, err := k.nodes.Get(request.WithNamespace(ctx, ""), name, &metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return kubelet.Address(obj.(*corev1.Node))
}

func (k *kubelets) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	obj, err := k.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// location returns the address of a pod's endpoint at its agent; container ""
// leaves it out of the path.
func (k *kubelets) location(ctx context.Context, p *corev1.Pod, endpoint, container string,
	params url.Values) (*url.URL, error) {
	host, err := k.host(ctx, p.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	path := "/" + endpoint + "/" + p.Namespace + "/" + p.Name
	if container != "" {
		path += "/" + container
	}
	return &url.URL{Scheme: "https", Host: host, Path: path, RawQuery: params.Encode()}, nil
}

// stream is location for a pod that must run somewhere.
func (k *kubelets) stream(ctx context.Context, p *corev1.Pod, endpoint, container string,
	params url.Values) (*url.URL, error) {
	if p.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", p.Name))
	}
	return k.location(ctx, p, endpoint, container, params)
}

// chooseContainer returns the container that is asked for, or the only one.
func chooseContainer(p *corev1.Pod, name string) (string, error) {
	var names []string
	podspec.Visit(&p.Spec, nil, func(c *corev1.Container, _ *field.Path) { names = append(names, c.Name) })
	if name != "" {
		for _, n := range names {
			if n == name {
				return name, nil
			}
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	switch len(p.Spec.Containers) {
	case 1:
		return p.Spec.Containers[0].Name, nil
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", p.Name))
	}
	return "",
		apierrors.NewBadRequest(
			fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", p.Name, names))
}

// mayCreate checks the verb "create" also for a GET that a WebSocket begins
// with, so that it takes the same right as a POST.
func (k *kubelets) mayCreate(ctx context.Context) error {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("no request info in context"))
	}
	if info.Verb == "create" {
		return nil
	}
	if k.authorizer == nil {
		return apierrors.NewInternalError(errors.New("no authorizer available"))
	}
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("error building authorizer attributes: %w", err))
	}
	decision, reason, err := k.authorizer.Authorize(ctx, asCreate{attributes})
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(corev1.Resource(info.Resource), info.Name, errors.New(reason))
	}
	return nil
}

type asCreate struct{ authorizer.Attributes }

func (asCreate) GetVerb() string { return "create" }
