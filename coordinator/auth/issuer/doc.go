// Package issuer believes JSON web tokens of the issuers that flags or an
// AuthenticationConfiguration name, and follows that file's changes.
package issuer
