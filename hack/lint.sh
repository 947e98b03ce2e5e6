#!/bin/sh
# gofmt, the house rules (tests/: layers, words, widths), vet and staticcheck
# over the product's module; vet and tests of what makes packages.
set -eu
cd "$(dirname "$0")/.."
unformatted=$(git ls-files '*.go' | grep -v zz_generated | xargs gofmt -l)
if [ -n "$unformatted" ]; then
	echo "gofmt wants changes in:" "$unformatted" >&2
	exit 1
fi
go test ./tests
go vet ./...
(cd hack/package && go vet . && go test .) # a module of its own
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
