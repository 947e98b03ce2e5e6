#!/bin/sh
# Installs the built programs and systemd units below DESTDIR ($1, default /).
# Configuration that exists is kept. On a running machine the coordinator's user
# and directory are made too: after an upgrade its unit needs them.
set -eu
cd "$(dirname "$0")/.."
dest=${1:-}
dest=${dest%/}
for p in shoal shoal-coordinator shoal-agent shoal-pause; do
	install -D -m 755 "bin/$p" "$dest/usr/bin/$p"
done
install -D -m 755 bin/shoal-cni "$dest/opt/cni/bin/shoal-cni"
for u in shoal-coordinator.service shoal-agent.service; do
	install -D -m 644 "systemd/$u" "$dest/usr/lib/systemd/system/$u"
done
install -D -m 644 systemd/sysusers.conf "$dest/usr/lib/sysusers.d/shoal.conf"
install -D -m 644 systemd/tmpfiles.conf "$dest/usr/lib/tmpfiles.d/shoal.conf"
install -D -m 644 systemd/logind.conf "$dest/usr/lib/systemd/logind.conf.d/50-shoal.conf"
for f in coordinator.yaml agent.yaml; do
	[ -e "$dest/etc/shoal/$f" ] || install -D -m 644 "systemd/$f" "$dest/etc/shoal/$f"
done
if [ -z "$dest" ] && [ -d /run/systemd/system ]; then
	systemd-sysusers shoal.conf
	systemd-tmpfiles --create shoal.conf
	systemctl daemon-reload
fi
