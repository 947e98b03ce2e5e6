// Package mode makes the chain of authorizers that flags or an
// AuthorizationConfiguration name, and makes it again when that file changes.
package mode
