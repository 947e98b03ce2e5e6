#!/bin/sh
# Packs the programs that upstream's specs call inside of agnhost (dig, curl,
# nc, ss, ipcs, a shell ...) from Debian's packages: rootfs.sh OUT.tar
set -eu
out=$1
[ "$out" -nt "$0" ] && exit 0
if ! command -v mmdebstrap >/dev/null 2>&1; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q >/dev/null
	apt-get install -qy --no-install-recommends mmdebstrap >/dev/null
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mmdebstrap --quiet --variant=extract --include=busybox,bash,libc-bin,coreutils,grep,sed,bind9-dnsutils,curl,wget,netcat-openbsd,iproute2,util-linux,iputils-ping,procps,iperf,conntrack,stress bookworm "$root" >/dev/null
rm -rf "$root/usr/share" "$root/var" "$root/etc" "$root"/usr/lib/x86_64-linux-gnu/perl* "$root"/usr/bin/perl* "$root/usr/lib/systemd" "$root/lib/systemd"
for d in etc tmp root uploads var/run var/tmp var/registry home; do mkdir -p "$root/$d"; done
chmod 1777 "$root/tmp" "$root/var/tmp"
# Debian's own programs come first in PATH; all of busybox's are in /bin, where
# specs look for some by their full names.
for applet in $("$root/bin/busybox" --list); do
	[ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
done
ln -sf nc.openbsd "$root/bin/nc"
# Only bash keeps variables whose names are no identifiers, which specs print
# with "sh"; others want the messages of busybox's shell from "/bin/sh".
ln -sf busybox "$root/bin/sh"
ln -sf /bin/bash "$root/usr/bin/sh"
ln -s /agnhost "$root/agnhost-2"
# Debian's busybox lacks nmeter, which specs ask for the time in milliseconds.
printf '#!/bin/sh\nexec date -u +%%T.%%3N\n' >"$root/bin/nmeter"
chmod 755 "$root/bin/nmeter"
# Debian's busybox dies of "wget -T", so GNU's comes first in PATH; as the other,
# it is not to try again and again.
echo 'tries = 1' >"$root/etc/wgetrc"
cat >"$root/etc/passwd" <<'P'
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
user-defined-in-image:x:1000:1000::/home:/bin/sh
P
cat >"$root/etc/group" <<'G'
root:x:0:
nogroup:x:65534:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
G
# The real busybox has no names for users of specs, which read numbers.
printf 'root:x:0:\nnogroup:x:65534:\n' >"$out.group"
# A spec reads the name of agnhost's public base in an image volume.
echo 'NAME="Debian, in place of Alpine Linux"' >"$root/etc/os-release"
tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$out.part" .
mv "$out.part" "$out"
