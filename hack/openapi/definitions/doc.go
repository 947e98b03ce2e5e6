// Package definitions holds the OpenAPI definitions that openapi-gen writes
// while hack/update-openapi.sh runs; nothing of them stays.
package definitions
