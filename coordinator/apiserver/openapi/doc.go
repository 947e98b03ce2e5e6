// Package openapi holds the OpenAPI documents of the built-in API, rendered by
// hack/update-openapi.sh and compressed, so that serving them costs no memory.
package openapi
