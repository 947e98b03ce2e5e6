#!/bin/sh
# After the files are gone. A purge leaves nothing of a cluster on this machine.
set -e
removed=/var/lib/shoal/removed # by prerm
case "$1" in
remove | 0) [ ! -d /run/systemd/system ] || systemctl daemon-reload ;;
purge)
	if [ -x $removed/shoal-agent ]; then
		$removed/shoal-agent cleanup --purge --config $removed/agent.yaml
	fi
	rm -rf --one-file-system /var/lib/shoal
	rm -f /etc/shoal/checkpoint.key /etc/shoal/admin.kubeconfig
	rmdir --ignore-fail-on-non-empty /etc/shoal 2>/dev/null || true
	! getent passwd shoal-coordinator >/dev/null || userdel shoal-coordinator
	[ ! -d /run/systemd/system ] || systemctl daemon-reload
	;;
esac
