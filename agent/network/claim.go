package network

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Claim takes the names of a bridge and an nftables table for this process, in
// its network namespace, until the closer is closed or the process ends. The
// claim is an abstract unix socket (unix(7)): the kernel keeps those per network
// namespace and forgets them with their process.
func Claim(bridge, table string) (io.Closer, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@shoal-agent/" + bridge + "/" + table, Net: "unix"})
	if errors.Is(err, unix.EADDRINUSE) {
		return nil,
			fmt.Errorf(
				"another agent on this host uses the bridge %s and the nftables table %s: stop it, or choose other names with bridge and nfTable (shoal up: --bridge, --nf-table)",
				bridge, table)
	}
	if err != nil {
		return nil, fmt.Errorf("claim the bridge %s: %w", bridge, err)
	}
	return l, nil
}
