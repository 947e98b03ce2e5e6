// Package listen limits what a server's clients take before anybody has said who
// they are: how many connections there are in all and from one source, and how
// long one that is refused may go on.
package listen
