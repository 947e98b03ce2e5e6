// Package chaos kills daemons while whole clusters work, and counts what is
// lost and what is left behind.
package chaos
