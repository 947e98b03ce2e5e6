#!/bin/sh
# Packs busybox and nginx (with a shell) from Debian's packages, and the tests' own server, into
# image archives for the tests: hack/test-images.sh OUTDIR. Keeps what is there.
set -eu
cd "$(dirname "$0")/.."
out=$1
export CGO_ENABLED=0 # the images have no C library
mkdir -p "$out"
if ! [ -f "$out/busybox.tar" ] || ! [ -f "$out/nginx.tar" ]; then
	if ! command -v mmdebstrap >/dev/null 2>&1; then
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -q >/dev/null
		apt-get install -qy --no-install-recommends mmdebstrap >/dev/null
	fi
	go build -o bin/image ./hack/image
fi
if ! [ -f "$out/testserver.tar" ] || [ -n "$(find tests/testserver -name '*.go' -newer "$out/testserver.tar")" ]; then
	${GO:-go} build -ldflags "-s -w" -o bin/testserver ./tests/testserver
	${GO:-go} run ./hack/image -name localhost/testserver:1 -out "$out/testserver.tar" -entrypoint /testserver bin/testserver=/testserver
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! [ -f "$out/busybox.tar" ]; then
	# The dynamic busybox: the static one cannot resolve names with glibc.
	mmdebstrap --quiet --variant=extract --include=busybox bookworm "$work/busybox" >/dev/null
	root=$work/busybox
	rm -rf "$root/usr/share" "$root/var" "$root/etc"
	mkdir -p "$root/etc" "$root/tmp" "$root/root" "$root/var/run" "$root/home"
	chmod 1777 "$root/tmp"
	for applet in $("$root/bin/busybox" --list); do
		[ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
	done
	printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n' >"$root/etc/passwd"
	printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
	bin/image -name localhost/busybox:1 -out "$out/busybox.tar" -cmd sh "$root=/"
fi
if ! [ -f "$out/nginx.tar" ]; then
	mmdebstrap --quiet --variant=extract --include=nginx-light,busybox bookworm "$work/nginx" >/dev/null
	root=$work/nginx
	for applet in $("$root/bin/busybox" --list); do
		[ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
	done
	rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/perl" "$root/usr/lib/x86_64-linux-gnu/perl-base" "$root/usr/share/i18n" "$root/var/cache"
	mkdir -p "$root/var/www/html" "$root/var/log/nginx" "$root/var/lib/nginx" "$root/run"
	echo '<h1>Welcome to nginx!</h1>' >"$root/var/www/html/index.html"
	printf 'root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n' >"$root/etc/passwd"
	printf 'root:x:0:\nwww-data:x:33:\n' >"$root/etc/group"
	cat >"$root/etc/nginx/nginx.conf" <<'CONF'
user www-data;
worker_processes 1;
error_log /dev/stderr;
pid /run/nginx.pid;
events { worker_connections 256; }
http {
	access_log /dev/stdout;
	include mime.types;
	server { listen 80 default_server; root /var/www/html; }
}
CONF
	bin/image -name localhost/nginx:1 -out "$out/nginx.tar" -entrypoint "/usr/sbin/nginx -g daemon\\040off;" -port 80/tcp "$root=/"
fi
