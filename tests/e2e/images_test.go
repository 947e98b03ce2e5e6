package e2e

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

const registryUser, registryPassword = "puller", "pa ss:wörd"

// startRegistry serves a registry with basic auth on the first machine's
// loopback. It has nginx and busybox, busybox also for another platform, and
// returns its address and busybox's digest.
func startRegistry(t *testing.T) (address, digest string) {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	address = serveInside(t, cluster, askingForLogin(images))

	busybox := load(t, "busybox")
	push(t, cluster, address+"/lib/nginx:1", load(t, "nginx"))
	push(t, cluster, address+"/lib/busybox:1", busybox)
	config, err := busybox.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Architecture = "arm64"
	arm, err := mutate.ConfigFile(busybox, config)
	if err != nil {
		t.Fatal(err)
	}
	push(t, cluster, address+"/lib/busybox:arm64", arm)
	hash, err := busybox.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return address, hash.String()
}

// askingForLogin serves images to who has the login.
func askingForLogin(images http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != registryUser || password != registryPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w,
				`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}
}

// serveInside serves on the loopback of a cluster's first machine.
func serveInside(t *testing.T, c *harness.Cluster, handler http.HandlerFunc) (address string) {
	t.Helper()
	var listener net.Listener
	err := harness.Inside(c.NetNS, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return listener.Addr().String()
}

func load(t *testing.T, image string) v1.Image {
	t.Helper()
	img, err := imageOf(image)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// imageOf is one that the tests have packed.
func imageOf(name string) (v1.Image, error) {
	return tarball.ImageFromPath(filepath.Join(cluster.Bin, "test-images", name+".tar"), nil)
}

func push(t *testing.T, c *harness.Cluster, reference string, img v1.Image) {
	t.Helper()
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: config.Dial, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	if err := remote.Write(ref, img, remote.WithTransport(transport),
		remote.WithAuth(&authn.Basic{Username: registryUser, Password: registryPassword})); err != nil {
		t.Fatal(err)
	}
}

// TestRegistry pulls by tag and by digest, with the pod's pull secret and with
// the service account's, and tells what is wrong when it cannot (IMG rows).
func TestRegistry(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	address, digest := startRegistry(t)
	s.k("create", "secret", "docker-registry", "pull", "--docker-server="+address, "--docker-username="+registryUser,
		"--docker-password="+registryPassword)
	s.k("create", "secret", "docker-registry", "wrong", "--docker-server="+address, "--docker-username="+registryUser, "--docker-password=no")
	pod := func(name, image, secret string) {
		t.Helper()
		s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, imagePullSecrets: [%s],
  containers: [{name: c, image: "%s/%s", imagePullPolicy: Always, %s}]}}`, name, secret, address, image, command(image)))
	}
	pod("tag", "lib/nginx:1", "{name: pull}")
	pod("digest", "lib/busybox@"+digest, "{name: pull}")
	pod("anonymous", "lib/busybox:1", "")
	pod("wrong", "lib/busybox:1", "{name: wrong}")
	pod("missing", "lib/none:1", "{name: pull}")
	pod("platform", "lib/busybox:arm64", "{name: pull}")
	pod("invalid", "lib/UPPER:1", "{name: pull}")
	s.ready("tag", "digest")
	ip := s.k("get", "pod", "tag", "-o", "jsonpath={.status.podIP}")
	if page, err := cluster.Run("curl", "-sS", "--max-time", "5", "http://"+ip); err != nil || !strings.Contains(page, "Welcome to nginx!") {
		t.Errorf("nginx: %v %s", err, page)
	}
	s.says(address+"/lib/busybox@"+digest, "get", "pod", "digest", "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	event := func(pod string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			s.shows(want, "get", "events", "--field-selector=involvedObject.name="+pod)
		}
	}
	event("tag", `Pulling image "`+address+`/lib/nginx:1"`, `Successfully pulled image "`+address+`/lib/nginx:1" in `, "Image size: ")
	event("anonymous", `Failed to pull image "`+address+`/lib/busybox:1": `, "Error: ErrImagePull",
		`Back-off pulling image "`+address+`/lib/busybox:1"`, "Error: ImagePullBackOff", "pull access denied, repository does not exist or may require authorization")
	event("wrong", "401 Unauthorized", "ErrImagePull")
	event("missing", "not found", "ErrImagePull")
	event("platform", "no match for platform in manifest")
	event("invalid", "Failed to apply default image tag", "InvalidImageName")
	s.shows("InvalidImageName", "get", "pod", "invalid")
	for _, name := range []string{"anonymous", "wrong", "missing", "platform"} {
		s.shows("ImagePullBackOff", "get", "pod", name)
	}

	// What was pulled with a secret is for those who bring one that opens it.
	s.k("create", "secret", "docker-registry", "copy", "--docker-server="+address, "--docker-username="+registryUser,
		"--docker-password="+registryPassword)
	borrow := func(name, policy, secret string) {
		t.Helper()
		s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, imagePullSecrets: [%s],
  containers: [{name: c, image: "%s/lib/nginx:1", imagePullPolicy: %s}]}}`, name, secret, address, policy))
	}
	borrow("borrow", "IfNotPresent", "")
	borrow("borrow-wrong", "IfNotPresent", "{name: wrong}")
	borrow("borrow-never", "Never", "")
	borrow("borrow-copy", "Never", "{name: copy}")
	s.ready("borrow-copy")
	event("borrow-copy", "already present on machine and can be accessed by the pod")
	event("borrow", "ErrImagePull", "pull access denied")
	event("borrow-wrong", "401 Unauthorized")
	event("borrow-never", `Container image "`+address+`/lib/nginx:1" is not present with pull policy of Never`)
	s.shows("ErrImageNeverPull", "get", "pod", "borrow-never")

	// What the node has a login for is for all of its pods, later too (IMG-18).
	push(t, cluster, address+"/node/busybox:1", load(t, "busybox"))
	logins, err := json.Marshal(map[string]any{"auths": map[string]any{address + "/node": map[string]string{
		"username": registryUser, "password": registryPassword}}})
	if err != nil {
		t.Fatal(err)
	}
	ofNode := filepath.Join(cluster.Dir, "kubelet", "config.json")
	if err := os.WriteFile(ofNode, logins, 0o600); err != nil {
		t.Fatal(err)
	}
	pod("node", "node/busybox:1", "")
	s.ready("node")
	if err := os.Remove(ofNode); err != nil {
		t.Fatal(err)
	}
	s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: node-again}, spec: {terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "%s/node/busybox:1", imagePullPolicy: IfNotPresent, command: [sleep, "999"]}]}}`,
		address))
	s.ready("node-again")
	event("node-again", "already present on machine and can be accessed by the pod")

	s.k("patch", "serviceaccount", "default", "-p", `{"imagePullSecrets":[{"name":"pull"}]}`)
	pod("account", "lib/busybox:1", "")
	s.ready("account")
	s.apply(`{apiVersion: v1, kind: Pod, metadata: {name: never}, spec: {containers: [{name: c, image: "localhost/none:1", imagePullPolicy: Never}]}}`)
	s.shows("ErrImageNeverPull", "get", "pod", "never")
	event("never", `Container image "localhost/none:1" is not present with pull policy of Never`)
}

// provider answers the kubelet's credential provider protocol for one registry.
const provider = `#!/bin/sh
cat >>"$0.asked"
cat <<'END'
{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry",
"auth":{%q:{"username":%q,"password":%q}}}
END
`

const providers = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- {name: provider, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ["127.0.0.1:5000"], defaultCacheDuration: 1h}
`

// TestCredentialProvider: a node asks a program for its login at a registry, once (IMG-19).
func TestCredentialProvider(t *testing.T) {
	const address, node = "127.0.0.1:5000", "node-login"
	s := newSpace(t)
	agent, err := cluster.Host(node, func(a *harness.Agent, c *agentconfig.Config) {
		c.ImageCredentialProviderBinDir = filepath.Join(a.Dir, "providers")
		c.ImageCredentialProviderConfig = filepath.Join(a.Dir, "providers.yaml")
	})
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(agent.Dir, "providers", "provider")
	err = errors.Join(os.Mkdir(filepath.Dir(program), 0o755),
		os.WriteFile(program, fmt.Appendf(nil, provider, address, registryUser, registryPassword), 0o755),
		os.WriteFile(filepath.Join(agent.Dir, "providers.yaml"), []byte(providers), 0o600))
	if err == nil {
		err = agent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, node)
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	err = harness.Inside(agent.NetNS, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		server := &httptest.Server{Listener: l, Config: &http.Server{Handler: askingForLogin(images)}}
		server.Start()
		t.Cleanup(server.Close)
		for _, repository := range []string{"a", "b"} {
			ref, err := name.ParseReference(address+"/"+repository+":1", name.Insecure)
			if err != nil {
				return err
			}
			transport := remote.WithTransport(harness.InMemory{Handler: images})
			if err := remote.Write(ref, load(t, "busybox"), transport); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.shows(node, "get", "nodes", "-o", "name")
	s.k("wait", "node/"+node, "--for=condition=Ready", "--timeout=30s")
	for _, repository := range []string{"a", "b"} {
		s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: %s, terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "%s/%s:1", imagePullPolicy: Always, command: [sleep, "999"]}]}}`,
			repository, node, address, repository))
	}
	s.ready("a", "b")
	asked, err := os.ReadFile(program + ".asked")
	if err != nil || strings.Count(string(asked), "CredentialProviderRequest") > 2 || // both may have been first
		!strings.Contains(string(asked), address+"/") {
		t.Errorf("asked %s, %v", asked, err)
	}
	s.k("delete", "pods", "--all")
}

func command(image string) string {
	if strings.Contains(image, "nginx") {
		return ""
	}
	return `command: [sleep, "999"]`
}
