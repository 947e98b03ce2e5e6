// Package networking declares the API group networking.k8s.io: the address
// ranges of Services (ServiceCIDR, IPAddress, KEP-1880), what lets traffic in
// from outside (Ingress, IngressClass) and what keeps it out (NetworkPolicy).
package networking
