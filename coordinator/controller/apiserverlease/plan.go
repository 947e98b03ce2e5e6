package apiserverlease

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	identityLabel = "apiserver.kubernetes.io/identity"
	identity      = "kube-apiserver"
)

// isIdentity tells whether a Lease is an API server's.
func isIdentity(l *coordinationv1.Lease) bool {
	return l.Namespace == metav1.NamespaceSystem && l.Labels[identityLabel] == identity
}

// left is how long a Lease holds from now on. One that does not say it holds no
// longer: servers always do.
func left(l *coordinationv1.Lease, now time.Time) time.Duration {
	if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return -1
	}
	end := l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second)
	return end.Sub(now)
}
