package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/apiserver/openapi"
)

// storagePatience is how long the storage may take to answer a health check.
const storagePatience = 2 * time.Second

func storageCheck(name string, ask func(context.Context) error) healthz.HealthChecker {
	return healthz.NamedGroupedCheck(name, name, func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), storagePatience)
		defer cancel()
		return ask(ctx)
	})
}

// loopbackCheck looks whether requests of the process to itself are answered. They
// need no certificate here; upstream's check of this name tells that its own, by
// which such requests go, has expired.
func (s *Server) loopbackCheck() healthz.HealthChecker {
	return healthz.NamedCheck("loopback-serving-certificate", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), storagePatience)
		defer cancel()
		if err := s.env.Client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
			return fmt.Errorf("requests of the process to itself: %w", err)
		}
		return nil
	})
}

// documentSteps look whether the OpenAPI documents of either version are there.
// Upstream's steps of these names begin to put them together.
func documentSteps() []Step {
	return []Step{
		{"apiservice-openapi-controller", func(context.Context) error {
			_, err := openapi.Read(openapi.V2JSON)
			return err
		}},
		{"apiservice-openapiv3-controller", func(context.Context) error {
			for path := range openapi.V3() {
				if _, err := openapi.Read(openapi.V3Name(path)); err != nil {
					return fmt.Errorf("OpenAPI of %s: %w", path, err)
				}
			}
			return nil
		}},
	}
}

const (
	identityCollector = "start-kube-apiserver-identity-lease-garbage-collector"
	flowProducer      = "priority-and-fairness-config-producer"
)

// LeaderSteps look whether controllers that upstream's API server runs, and that run
// here where the leader does, have what they work on.
func LeaderSteps(client kubernetes.Interface) []Step {
	one := metav1.ListOptions{Limit: 1}
	return []Step{
		{identityCollector, func(ctx context.Context) error {
			if _, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, one); err != nil {
				return fmt.Errorf("read the Leases of API servers: %w", err)
			}
			return nil
		}},
		{flowProducer, func(ctx context.Context) error {
			if _, err := client.FlowcontrolV1().FlowSchemas().List(ctx, one); err != nil {
				return fmt.Errorf("read the FlowSchemas: %w", err)
			}
			return nil
		}},
	}
}

// informed waits until admission plugins and authorizers know what they decide by.
func (s *Server) informed(ctx context.Context) error {
	for kind, known := range s.factory.WaitForCacheSync(ctx.Done()) {
		if !known {
			return fmt.Errorf("%v are not known", kind)
		}
	}
	return nil
}

// retryUnknownPath is when a client may ask again for a path that is not known yet.
const retryUnknownPath = 5

// notFound answers for paths that no server of the chain has. While the server
// starts they may come to be known.
func notFound(codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if filters.NoMuxAndDiscoveryIncompleteKey(r.Context()) {
			http.NotFound(w, r)
			return
		}
		err := apierrors.NewServiceUnavailable(
			"the request has been made before all known HTTP paths have been installed, please try again")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryUnknownPath}
		gv := schema.GroupVersion{Group: "unknown", Version: "unknown"}
		if info, ok := request.RequestInfoFrom(r.Context()); ok {
			gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		}
		responsewriters.ErrorNegotiated(err, codecs, gv, w, r)
	})
}
