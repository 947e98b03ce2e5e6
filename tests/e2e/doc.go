// Package e2e tests whole clusters on this machine: real containers, nftables
// and processes, driven with kubectl as a user does.
package e2e
