#!/bin/sh
# Installs the built programs, units, default configuration, completions and manual
# pages below DESTDIR ($1, default /): the one list of what an installation has, of
# which packages are made too (hack/package.sh). BIN is where the programs were built.
# Configuration that exists is kept. On a running machine the coordinator's user
# and directory are made too: after an upgrade its unit needs them.
set -eu
cd "$(dirname "$0")/.."
dest=${1:-}
dest=${dest%/}
bin=${BIN:-bin}
share=bin/share # of the commands, whatever machine they are built for
for p in shoal shoal-coordinator shoal-agent shoal-pause shoal-hybrid shoal-fence shoal-tunnel shoal-gateway; do
	install -D -m 755 "$bin/$p" "$dest/usr/bin/$p"
done
install -D -m 755 "$bin/shoal-cni" "$dest/opt/cni/bin/shoal-cni"
for u in shoal-coordinator.service shoal-agent.service; do
	install -D -m 644 "systemd/$u" "$dest/usr/lib/systemd/system/$u"
done
install -D -m 644 systemd/sysusers.conf "$dest/usr/lib/sysusers.d/shoal.conf"
install -D -m 644 systemd/tmpfiles.conf "$dest/usr/lib/tmpfiles.d/shoal.conf"
install -D -m 644 systemd/logind.conf "$dest/usr/lib/systemd/logind.conf.d/50-shoal.conf"
install -D -m 644 systemd/sysctl.conf "$dest/usr/lib/sysctl.d/50-shoal.conf"
for f in coordinator.yaml agent.yaml; do
	[ -e "$dest/etc/shoal/$f" ] || install -D -m 644 "systemd/$f" "$dest/etc/shoal/$f"
done
[ -e "$dest/etc/default/shoal" ] || install -D -m 644 systemd/default "$dest/etc/default/shoal"
for p in shoal shoal-coordinator shoal-agent; do
	install -D -m 644 "$share/bash/$p" "$dest/usr/share/bash-completion/completions/$p"
	install -D -m 644 "$share/zsh/_$p" "$dest/usr/share/zsh/vendor-completions/_$p"
	install -D -m 644 "$share/fish/$p.fish" "$dest/usr/share/fish/vendor_completions.d/$p.fish"
done
install -d -m 755 "$dest/usr/share/man/man8" "$dest/usr/share/doc/shoal"
for page in "$share"/man/man8/*.8; do
	gzip -9nc "$page" >"$dest/usr/share/man/man8/${page##*/}.gz"
done
gzip -9nc CHANGELOG.md >"$dest/usr/share/doc/shoal/changelog.gz"
install -m 644 README.md "$dest/usr/share/doc/shoal/README.md"
install -m 644 hack/package/copyright "$dest/usr/share/doc/shoal/copyright"
if [ -z "$dest" ] && [ -d /run/systemd/system ]; then
	systemd-sysusers shoal.conf
	systemd-tmpfiles --create shoal.conf
	systemctl daemon-reload
	/lib/systemd/systemd-sysctl --prefix=vm.overcommit_memory --prefix=kernel.panic --prefix=fs.inotify \
		--prefix=net.ipv4.neigh --prefix=net.ipv6.neigh ||
		echo "install: not all of /usr/lib/sysctl.d/50-shoal.conf is set: see docs/operating.md" >&2
fi
