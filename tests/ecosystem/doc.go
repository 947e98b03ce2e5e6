// Ecosystem installs software that people run on Kubernetes, as its users do,
// on a cluster of its own, and checks of each what it is for. Programs are built
// from the module proxy or come from Debian, manifests are the software's own,
// and images have the names that these ask for.
package main
