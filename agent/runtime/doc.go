// Package runtime is a CRI v1 runtime in process, assembled of image, sandbox,
// container, oci and stream. The agent calls it as Go interfaces
// (k8s.io/cri-api/pkg/apis); crictl and others reach it at RunDir/cri.sock.
// Beside it RunDir/images.sock takes POST /import?path=FILE and GET /pulls over HTTP.
package runtime
