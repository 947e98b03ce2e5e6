// Package kind is the one declaration of an API kind: names, defaults,
// validation, strategy, subresources and table columns. The packages
// registry/<group> fill in an Of value per kind; this package turns it into
// strategies and stores of k8s.io/apiserver. It knows no kind itself.
package kind
