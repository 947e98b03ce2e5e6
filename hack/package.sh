#!/bin/sh
# Packs what hack/install.sh installs: package.sh FORMAT VERSION [DIR] writes a deb or
# an rpm into DIR (default bin). GOARCH is the architecture of the programs in BIN.
set -eu
cd "$(dirname "$0")/.."
format=$1 version=$2
mkdir -p "${3:-bin}"
out=$(cd "${3:-bin}" && pwd)
go=${GO:-go}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
hack/install.sh "$stage"
arch=$($go env GOARCH)
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
cd hack/package
GOARCH='' $go run . -root "$stage" -format "$format" -version "$version" -arch "$arch" -time "$time" -out "$out"
