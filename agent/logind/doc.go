// Package logind hears of shutdowns from systemd-logind, delays them, and has it
// let them wait for as long as the node's pods need (org.freedesktop.login1(5)).
package logind
