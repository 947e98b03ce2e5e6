// Package apitest starts a real API server in a test: real store, real TLS, a
// random port and a directory that ends with the test.
package apitest
