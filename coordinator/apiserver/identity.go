package apiserver

import (
	"context"
	"fmt"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

const (
	// identityLabel marks the Leases of API servers.
	identityLabel = "apiserver.kubernetes.io/identity"
	// A Lease that is not renewed for identityTerm is that of a server that is gone.
	identityTerm = time.Hour
	// identityRenewal is less often than upstream's ten seconds, which are a write
	// to the disk each, for a term of an hour.
	identityRenewal = 10 * time.Minute
)

// ShowIdentity keeps the Lease by which clients find this API server among others.
// It is deleted when the server stops. Call it before Run; the step returned needs
// the system namespaces.
func (s *Server) ShowIdentity() (Step, error) {
	g := s.aggregator.GenericAPIServer
	host, err := os.Hostname()
	if err != nil {
		return Step{}, fmt.Errorf("name this API server's Lease: %w", err)
	}
	keeper := lease.NewController(clock.RealClock{}, s.Client(), g.APIServerID+"_"+string(uuid.NewUUID()),
		int32(identityTerm/time.Second), nil, identityRenewal, g.APIServerID, metav1.NamespaceSystem,
		func(l *coordinationv1.Lease) error {
			metav1.SetMetaDataLabel(&l.ObjectMeta, identityLabel, "kube-apiserver")
			metav1.SetMetaDataLabel(&l.ObjectMeta, corev1.LabelHostname, host)
			return nil
		})
	if err := g.AddPreShutdownHook("stop-kube-apiserver-identity-lease-controller", func() error {
		keeper.Stop()
		return nil
	}); err != nil {
		return Step{}, err
	}
	return Step{"start-kube-apiserver-identity-lease-controller", func(ctx context.Context) error {
		return keeper.Start(ctx.Done())
	}}, nil
}
