// Package packs a tree of files as a deb or an rpm: what hack/install.sh staged, with
// the scripts beside this file, which dpkg and rpm run. It is a module of its own, so
// that the product does not depend on nfpm.
package main
