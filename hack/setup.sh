#!/bin/sh
# Installs what Shoal needs from the distribution; quick when all is there. With the
# argument "machines" also what makes and runs whole machines, for tests, with "virtual"
# what runs those with a kernel of their own.
set -eu
need=""
want() { command -v "$1" >/dev/null 2>&1 || need="$need $2"; }
want runc runc
want crun crun
want conmon conmon
want ip iproute2
want nft nftables
want curl curl
want pgrep procps
want nsenter util-linux
want busybox busybox-static # for tests
want iptables-nft iptables # for tests of machines that have a firewall
want dbus-daemon dbus-daemon # for upstream's suite of nodes
want gcc "gcc libc6-dev" # for the tests' race detector
want mkfs.ext4 e2fsprogs # for volumes
want mkfs.xfs xfsprogs # for tests of volumes
want mkfs.btrfs btrfs-progs
for more; do
	case $more in
	machines)
		want mmdebstrap mmdebstrap
		want systemd-nspawn systemd-container
		;;
	virtual) want qemu-system-x86_64 qemu-system-x86 ;;
	*) echo "setup: $more: use machines, virtual" >&2; exit 1 ;;
	esac
done
if [ -n "$need" ]; then
	[ "$(id -u)" = 0 ] || { echo "setup: as root, run: apt-get install$need" >&2; exit 1; }
	command -v apt-get >/dev/null || { echo "setup: install these by hand:$need" >&2; exit 1; }
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q >/dev/null
	# shellcheck disable=SC2086 # a list of packages
	apt-get install -qy --no-install-recommends $need >/dev/null
fi
command -v go >/dev/null 2>&1 || { echo "setup: Go 1.26 or newer is needed: https://go.dev/dl" >&2; exit 1; }
