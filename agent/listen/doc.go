// Package listen limits a server's connections before anybody has said who they
// are: how many there are in all, and how many from one source.
package listen
