#!/bin/sh
# After an installation or an upgrade. A fresh installation starts nothing: the
# machine is either the first of a cluster or joins one, which its administrator says.
set -e
units="shoal-coordinator.service shoal-agent.service"
case "$1" in
configure | 1 | 2) ;; # dpkg; rpm's first installation, its upgrade
abort-remove) # what the removal stopped, where it is enabled
	[ ! -d /run/systemd/system ] || for u in $units; do
		! systemctl -q is-enabled $u 2>/dev/null || systemctl start $u || true
	done
	exit 0
	;;
*) exit 0 ;;
esac
systemd-sysusers shoal.conf
systemd-tmpfiles --create shoal.conf
rm -rf /var/lib/shoal/removed # this version cleans up by itself
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# What the administrator has set below /etc/sysctl.d stays.
/lib/systemd/systemd-sysctl --prefix=vm.overcommit_memory --prefix=kernel.panic --prefix=fs.inotify \
	--prefix=net.ipv4.neigh --prefix=net.ipv6.neigh ||
	echo "shoal: not all of /usr/lib/sysctl.d/50-shoal.conf is set" >&2
# `shoal upgrade` restarts them itself, one after the other, and goes back if need be.
[ -z "$SHOAL_UPGRADE" ] || exit 0
# What runs goes on with the new programs. Containers are not the units': they run on,
# and the new agent takes them over.
systemctl try-restart $units ||
	echo "shoal: a service did not start again, see: journalctl -u shoal-coordinator -u shoal-agent" >&2
if [ "$1" = 1 ] || { [ "$1" = configure ] && [ -z "$2" ]; }; then
	echo "shoal: on the first machine of a cluster run: systemctl enable --now shoal-coordinator shoal-agent"
fi
