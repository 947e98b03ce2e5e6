// Command critest runs the CRI validation suite of sigs.k8s.io/cri-tools
// against the runtime that an agent serves: it builds crictl and critest, makes
// the images that the suite asks for and serves them in place of the public
// registries, starts an agent in a network namespace of its own, and writes
// results.txt.
package main
