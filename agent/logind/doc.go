// Package logind hears of shutdowns from systemd-logind and delays them
// (org.freedesktop.login1(5)).
package logind
