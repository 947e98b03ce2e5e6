#!/bin/sh
# Before the files go. An upgrade touches nothing: postinst restarts the services.
set -e
case "$1" in
remove | 0) ;; # dpkg, rpm
*) exit 0 ;;
esac
ON_REMOVE=stop
[ ! -r /etc/default/shoal ] || . /etc/default/shoal
case "$ON_REMOVE" in
stop | keep | drain) ;;
*)
	echo "shoal: ON_REMOVE=$ON_REMOVE in /etc/default/shoal: use stop, keep or drain" >&2
	exit 1
	;;
esac
config=/etc/shoal/agent.yaml
systemd() { [ ! -d /run/systemd/system ] || systemctl "$@"; }
# A cluster of "shoal up" has its own command.
if [ -e /var/lib/shoal/up.yaml ] && [ "$ON_REMOVE" != keep ]; then shoal down; fi
# It stops the agent itself; where pods cannot go, nothing is removed.
if [ "$ON_REMOVE" = drain ] && [ -e $config ]; then
	echo "shoal: this node's pods go elsewhere (ON_REMOVE=drain in /etc/default/shoal)"
	shoal leave
fi
systemd stop shoal-agent.service
if [ "$ON_REMOVE" = stop ]; then
	echo "shoal: ending this node's pods (ON_REMOVE=stop in /etc/default/shoal)"
	[ ! -e $config ] || shoal-agent cleanup --config $config --grace 2m
elif [ "$ON_REMOVE" = keep ]; then
	echo "shoal: this node's pods run on, without anybody who restarts or updates them (ON_REMOVE=$ON_REMOVE in /etc/default/shoal)"
fi
systemd stop shoal-coordinator.service
[ ! -d /run/systemd/system ] || systemctl --no-reload -q disable shoal-agent.service shoal-coordinator.service || true
# A purge comes when the programs and their configuration are gone.
if [ "$1" = remove ] && [ -e $config ]; then
	install -d -m 700 /var/lib/shoal/removed
	ln -f /usr/bin/shoal-agent /var/lib/shoal/removed/ 2>/dev/null || cp /usr/bin/shoal-agent /var/lib/shoal/removed/
	cp $config /var/lib/shoal/removed/agent.yaml
fi
