// Package resourceclaim makes a ResourceClaim of each ResourceClaimTemplate that a
// pod names (KEP-4381), says in the pod's status which it is, reserves allocated
// claims for pods that were bound without the scheduler, and frees claims whose
// pods are over: reservations and allocations go, and so do generated claims.
// Whoever allocates devices is elsewhere.
package resourceclaim
