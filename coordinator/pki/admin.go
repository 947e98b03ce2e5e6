package pki

import "time"

// An administrator's credential is a certificate of AdminGroup: a binding gives
// the group its rights, so that removing the binding revokes all of them, which
// nothing can do for a certificate of system:masters.
const (
	AdminUser  = "shoal-admin"
	AdminGroup = "shoal:cluster-admins"
	// AdminLifetime is short enough to matter and long enough for a machine that
	// is started once a month; `shoal up` renews it in time.
	AdminLifetime = 90 * 24 * time.Hour
)

// KubeletClientGroup may use the kubelets' API and nothing else: the API server
// itself is in it there.
const KubeletClientGroup = "shoal:kubelet-clients"
