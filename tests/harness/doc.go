// Package harness starts whole clusters for tests: real daemons, containers
// and nftables, with network namespaces as hosts on one bridge, each with a host
// name of its own. Every cluster has its own directories, cgroups and addresses, and leaves nothing behind.
package harness
