package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kmsapi "k8s.io/kms/apis/v2"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// encrypted starts an API server on dir whose store is encrypted by file ("":
// not at all), with what a rotation asks it.
func encrypted(t *testing.T, dir, file string) (*apitest.Server, kubernetes.Interface) {
	t.Helper()
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds(), Dir: dir, Encryption: file})
	return s, s.Kubernetes(t)
}

// inProcess is the API of a server without a coordinator around it.
type inProcess struct {
	encryption.API
	server *apitest.Server
	// fail ends a rotation when it asks for the state for the nth time.
	fail, asked int
}

var errInterrupted = errors.New("interrupted")

func (i *inProcess) State(ctx context.Context) (encryption.State, error) {
	if i.asked++; i.asked == i.fail {
		return encryption.State{}, errInterrupted
	}
	hash, values, err := i.server.Storage.EncryptionState(ctx)
	s := encryption.State{Hash: hash, Values: values}
	if err != nil {
		s.Error = err.Error()
	}
	return s, nil
}

func (i *inProcess) Forget(ctx context.Context) error { return i.server.Storage.Forget(ctx) }

func rotationOf(t *testing.T, s *apitest.Server, file string) (encryption.Rotation, *inProcess) {
	t.Helper()
	api, err := encryption.NewAPI(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	p := &inProcess{API: api, server: s}
	return encryption.Rotation{File: encryption.File(file), API: p, Out: &bytes.Buffer{}}, p
}

func putSecrets(t *testing.T, c kubernetes.Interface, prefix string, n int) {
	t.Helper()
	for i := range n {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, i)},
			StringData: map[string]string{"k": "value of " + prefix}}
		if _, err := c.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func checkSecrets(t *testing.T, c kubernetes.Interface, prefix string, n int) {
	t.Helper()
	for i := range n {
		s, err := c.CoreV1().Secrets("default").Get(t.Context(), fmt.Sprint(prefix, i), metav1.GetOptions{})
		if err != nil || string(s.Data["k"]) != "value of "+prefix {
			t.Fatalf("secret %s%d: %v %v", prefix, i, s, err)
		}
	}
}

// keysInUse are the keys that Secrets are stored under.
func keysInUse(t *testing.T, s *apitest.Server) []string {
	t.Helper()
	_, values, err := s.Storage.EncryptionState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(values["secrets"]))
}

// A store that was in the clear is read on, and a rotation rewrites it; a second
// one leaves nothing under the first key. What was interrupted, at any question
// to the coordinator, goes on.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	before, c := encrypted(t, dir, "")
	putSecrets(t, c, "clear", 3)
	before.Stop()

	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	s, c := encrypted(t, dir, file)
	checkSecrets(t, c, "clear", 3)
	putSecrets(t, c, "sealed", 3)
	first := keysInUse(t, s)
	if len(first) != 2 || first[0] != "identity" || !strings.HasPrefix(first[1], "secretbox:key-") {
		t.Fatalf("stored under %v", first)
	}

	last := first[1]
	for fail := range 10 {
		r, api := rotationOf(t, s, file)
		api.fail = fail + 1
		err := r.Run(t.Context(), time.Now())
		interrupted := errors.Is(err, errInterrupted)
		if err != nil && !interrupted {
			t.Fatalf("interrupted at %d: %v\n%s", fail, err, r.Out)
		}
		if interrupted {
			putSecrets(t, c, fmt.Sprint("between", fail, "-"), 1)
			api.fail = 0
			if err := r.Run(t.Context(), time.Now()); err != nil {
				t.Fatalf("after an interruption at %d: %v\n%s", fail, err, r.Out)
			}
			checkSecrets(t, c, fmt.Sprint("between", fail, "-"), 1)
		}
		now := keysInUse(t, s)
		if len(now) != 1 || now[0] == last || now[0] == "identity" {
			t.Fatalf("interrupted at %d: stored under %v, last was %s\n%s", fail, now, last, r.Out)
		}
		last = now[0]
		data, err := os.ReadFile(file)
		if err != nil || strings.Count(string(data), "secret:") != 1 {
			t.Fatalf("%s %v", data, err)
		}
		checkSecrets(t, c, "clear", 3)
		checkSecrets(t, c, "sealed", 3)
		if !interrupted {
			break
		}
	}
	r, _ := rotationOf(t, s, file)
	if err := r.Status(t.Context()); err != nil || !strings.Contains(r.Out.(*bytes.Buffer).String(), "secrets   "+last+"  ") {
		t.Errorf("%v\n%s", err, r.Out)
	}
}

// A changed file without the keys in use is refused, and what was in use stays so.
func TestWrongKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	s, c := encrypted(t, dir, file)
	putSecrets(t, c, "s", 1)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := encryption.File(file).Make(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Storage.EncryptionState(t.Context()); err == nil || !strings.Contains(err.Error(), "stored secrets are under secretbox:key-") {
		t.Errorf("a file that lacks a key in use: %v", err)
	}
	putSecrets(t, c, "t", 1)
	s.Stop()

	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	_, c = encrypted(t, dir, file)
	checkSecrets(t, c, "s", 1)
	checkSecrets(t, c, "t", 1)
}

// A coordinator encrypts without being told to. When its key is gone it says so
// instead of making another.
func TestEncryptedByDefault(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	first := coordinator(t, dir, port)
	c := client(t, first, dir, port)
	putSecrets(t, c, "s", 1)
	var state encryption.State
	data, err := c.Discovery().RESTClient().Get().AbsPath(encryption.StatePath).DoRaw(t.Context())
	if err != nil || json.Unmarshal(data, &state) != nil || len(state.Values["secrets"]) != 1 || state.Error != "" ||
		state.Values["secrets"]["identity"] != 0 {
		t.Errorf("%s %v", data, err)
	}
	metrics, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil || !bytes.Contains(metrics, []byte(state.Hash)) {
		t.Errorf("apiserver_encryption_config_controller_last_config_info does not tell %s: %v", state.Hash, err)
	}
	first.kill()
	file := filepath.Join(dir, "coordinator", "pki", "encryption.yaml")
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	refused := func(what, remedy string) {
		t.Helper()
		p := coordinator(t, dir, port)
		if err, ended := p.wait(30 * time.Second); !ended || err == nil || !strings.Contains(p.out.String(), file) ||
			!strings.Contains(p.out.String(), remedy) {
			t.Errorf("start with %s: %v\n%s", what, err, p.out)
		}
	}
	refused("no key", "put it back from a backup")
	if err := encryption.File(file).Make(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	refused("a wrong key", "put the file back from the backup")
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	c = client(t, coordinator(t, dir, port), dir, port)
	checkSecrets(t, c, "s", 1)
}

// kmsPlugin is a KMS v2 plugin: it turns bytes round.
type kmsPlugin struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	key string
}

func flip(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}

func (k *kmsPlugin) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return &kmsapi.StatusResponse{Version: "v2", Healthz: "ok", KeyId: k.key}, nil
}

func (k *kmsPlugin) Encrypt(_ context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	return &kmsapi.EncryptResponse{Ciphertext: flip(r.Plaintext), KeyId: k.key}, nil
}

func (k *kmsPlugin) Decrypt(_ context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	return &kmsapi.DecryptResponse{Plaintext: flip(r.Ciphertext)}, nil
}

func serveKMS(t *testing.T, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(g, &kmsPlugin{key: "one"})
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
}

const kmsConfig = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps]
  providers:
  - kms: {apiVersion: v2, name: flip, endpoint: "unix://%s"}
  - secretbox: {keys: [{name: own, secret: %s}]}
  - identity: {}
`

// The administrator's own file works as upstream's: KMS v2 first, then the keys
// before it; a change is taken over live, and told when it cannot be.
func TestKMS(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "own.yaml"), filepath.Join(dir, "kms.sock")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	s, c := encrypted(t, dir, file)
	putSecrets(t, c, "s", 2)
	made, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(made), "name: ")
	name, rest, _ := strings.Cut(after, "\n")
	_, rest, _ = strings.Cut(rest, "secret: ")
	secret, _, _ := strings.Cut(rest, "\n")
	serveKMS(t, socket)
	config := strings.Replace(fmt.Sprintf(kmsConfig, socket, secret), "name: own", "name: "+name, 1)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r, _ := rotationOf(t, s, file)
	if err := r.Run(t.Context(), time.Now()); err == nil || !strings.Contains(err.Error(), "rotated in the KMS") {
		t.Errorf("rotation of a KMS's key: %v", err)
	}
	if err := r.Rewrite(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, r.Out)
	}
	if now := keysInUse(t, s); len(now) != 1 || now[0] != "kms:flip" {
		t.Errorf("stored under %v", now)
	}
	checkSecrets(t, c, "s", 2)
	health := func() int {
		code := 0
		c.Discovery().RESTClient().Get().AbsPath("/readyz/kms-providers").Do(t.Context()).StatusCode(&code)
		return code
	}
	s.Stop()
	s, c = encrypted(t, dir, file)
	checkSecrets(t, c, "s", 2)
	if code := health(); code != http.StatusOK {
		t.Errorf("/readyz/kms-providers: %d", code)
	}
	if err := os.WriteFile(file, []byte("kind: Secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Storage.EncryptionState(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is no configuration: %v", err)
	}
	checkSecrets(t, c, "s", 2)
}
