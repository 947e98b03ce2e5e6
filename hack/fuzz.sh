#!/bin/sh
# Runs every fuzz target of the module, TIME ($1) each; $2 selects by name.
# What a target finds is left in its package's testdata/fuzz and fails `go test`.
set -eu
cd "$(dirname "$0")/.."
time=${1:-1m}
only=${2:-.}
failed=0 ran=0
targets=$(grep -roE --include='*_test.go' --exclude-dir=bin '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's#^\./(.*)/[^/]*:func (Fuzz.*)#\1 \2#' | sort -u)
while read -r dir name; do
	echo "$dir/$name" | grep -qE -- "$only" || continue
	ran=$((ran + 1))
	echo "== $dir $name"
	${GO:-go} test -run '^$' -fuzz "^$name\$" -fuzztime "$time" ${FUZZ_PARALLEL:+-parallel "$FUZZ_PARALLEL"} "./$dir" || failed=$((failed + 1))
done <<LIST
$targets
LIST
echo "$((ran - failed)) passed, $failed failed"
[ "$failed" = 0 ] && [ "$ran" -gt 0 ]
