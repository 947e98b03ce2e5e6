// Package stream serves exec, attach and port-forward sessions of CRI clients
// over HTTP on the loopback interface, from the first request on.
package stream
