#!/bin/sh
# Renders the OpenAPI documents that the API server serves, from the types of
# k8s.io/api and the kinds in coordinator/registry. Run it after adding a kind.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work" hack/openapi/definitions/zz_generated.openapi.go' EXIT
# That of upstream v1.36.3: later ones leave the defaults of list items out.
version=v0.0.0-20260317180543-43fb72c5454a
GOBIN=$work GOFLAGS=-mod=mod go install "k8s.io/kube-openapi/cmd/openapi-gen@$version"
: >"$work/header"
api=k8s.io/api machinery=k8s.io/apimachinery/pkg
"$work/openapi-gen" \
	--output-dir hack/openapi/definitions --output-pkg github.com/shoal-project/shoal/hack/openapi/definitions \
	--output-file zz_generated.openapi.go --go-header-file "$work/header" --report-filename "$work/violations" \
	$api/admissionregistration/v1 $api/apps/v1 $api/authentication/v1 $api/authorization/v1 $api/autoscaling/v1 $api/autoscaling/v2 \
	$api/batch/v1 $api/certificates/v1 $api/coordination/v1 $api/core/v1 $api/discovery/v1 $api/events/v1 $api/flowcontrol/v1 \
	$api/networking/v1 $api/node/v1 $api/policy/v1 $api/rbac/v1 $api/resource/v1 $api/scheduling/v1 $api/storage/v1 \
	k8s.io/metrics/pkg/apis/metrics/v1beta1 \
	$machinery/apis/meta/v1 $machinery/runtime $machinery/version $machinery/api/resource $machinery/util/intstr
out=coordinator/apiserver/openapi/data
go run -tags openapi ./hack/openapi "$work/data"
rm -rf "$out"
mv "$work/data" "$out"
