package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/dynamic"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/registry"
)

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{
"group":"example.com","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"scope":"Namespaced",
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// A rotation finds custom resources that nobody has asked for since the start,
// and drops no key that they are under.
func TestRotateCustomResources(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file,
		bytes.Replace(made, []byte("- secrets\n"), []byte("- secrets\n  - widgets.example.com\n"), 1),
		0o600); err != nil {
		t.Fatal(err)
	}
	kinds := func(s *apitest.Server) (crds, widgets dynamic.ResourceInterface) {
		c, err := dynamic.NewForConfig(s.Config)
		if err != nil {
			t.Fatal(err)
		}
		return c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}),
			c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).
				Namespace("default")
	}
	s, _ := encrypted(t, dir, file)
	crds, objects := kinds(s)
	crd := &unstructured.Unstructured{}
	if err := crd.UnmarshalJSON([]byte(widgets)); err != nil {
		t.Fatal(err)
	}
	if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}}
	soon(t, "the custom resource is served", func() error {
		_, err := objects.Create(t.Context(), widget, metav1.CreateOptions{})
		return err
	})
	s.Stop()

	s, _ = encrypted(t, dir, file)
	r, _ := rotationOf(t, s, file)
	// discovery has to find the kind first
	soon(t, "the rotation", func() error { return r.Run(t.Context(), time.Now()) })
	_, values, err := s.Storage.EncryptionState(t.Context())
	if err != nil || len(values["widgets.example.com"]) != 1 {
		t.Errorf("%v %v", values, err)
	}
	_, objects = kinds(s)
	if _, err := objects.Get(t.Context(), "w", metav1.GetOptions{}); err != nil {
		t.Errorf("after the rotation: %v\n%s", err, r.Out)
	}
}

// stubborn refuses updates of one Secret.
type stubborn struct{ open bool }

func (s *stubborn) Handles(o admission.Operation) bool { return o == admission.Update }

func (s *stubborn) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetName() == "s0" && !s.open {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s0", errors.New("not this one"))
	}
	return nil
}

// An object that the API refuses to write is named and keeps its key, and all
// others are rewritten; the rotation goes on when it is written.
func TestRotateRefused(t *testing.T) {
	dir, gate := t.TempDir(), &stubborn{}
	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	s := apitest.Start(t, apitest.Options{
		Kinds: registry.Kinds(), Dir: dir, Encryption: file,
		Admission: func(*apiserver.Server) []admission.Interface { return []admission.Interface{gate} },
	})
	c := s.Kubernetes(t)
	putSecrets(t, c, "s", 3)
	before := keysInUse(t, s)[0]
	r, _ := rotationOf(t, s, file)
	if err := r.Run(t.Context(), time.Now()); err == nil || !strings.Contains(err.Error(), "default/s0") {
		t.Fatalf("%v\n%s", err, r.Out)
	}
	_, values, err := s.Storage.EncryptionState(t.Context())
	if err != nil || values["secrets"][before] != 1 || len(values["secrets"]) != 2 {
		t.Errorf("%v %v", values, err)
	}
	gate.open = true
	if err := r.Run(t.Context(), time.Now()); err != nil {
		t.Fatalf("%v\n%s", err, r.Out)
	}
	if now := keysInUse(t, s); len(now) != 1 || now[0] == before {
		t.Errorf("stored under %v", now)
	}
	checkSecrets(t, c, "s", 3)
}

// blind is a coordinator that counts nothing, and rewrites nothing.
type blind struct {
	*inProcess
	others []string
}

func (b blind) State(ctx context.Context) (encryption.State, error) {
	s, err := b.inProcess.State(ctx)
	s.Values, s.Others = nil, b.others
	return s, err
}

func (blind) Rewrite(context.Context, string) (int, error) { return 0, nil }

// A key that the coordinator still needs is in the file after a rotation that
// went wrong; and none begins while another coordinator has a file of its own.
func TestNoKeyIsLost(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	s, c := encrypted(t, dir, file)
	putSecrets(t, c, "s", 1)
	r, p := rotationOf(t, s, file)
	r.API = blind{p, []string{"coordinator:b"}}
	keys := func() int {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), "secret:")
	}
	if err := r.Run(t.Context(), time.Now()); err == nil ||
		!strings.Contains(err.Error(), "coordinator:b") || keys() != 1 {
		t.Errorf("two coordinators: %v, %d keys", err, keys())
	}
	r.API = blind{p, nil}
	if err := r.Run(t.Context(), time.Now()); err == nil || keys() != 2 {
		t.Errorf("a needed key is dropped: %v, %d keys\n%s", err, keys(), r.Out)
	}
	r.API = p
	if err := r.Run(t.Context(), time.Now()); err != nil || keys() != 1 {
		t.Errorf("%v, %d keys\n%s", err, keys(), r.Out)
	}
	checkSecrets(t, c, "s", 1)
}

// Keys that are not those of a store are refused although no Secret is there
// yet to tell: another coordinator would write what this one cannot read.
func TestTwoKeysForOneStore(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	first := coordinator(t, dir, port)
	client(t, first, dir, port)
	first.kill()
	file := filepath.Join(dir, "coordinator", "pki", "encryption.yaml")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := encryption.File(file).Make(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	second := coordinator(t, dir, port)
	if err, ended := second.wait(30 * time.Second); !ended || err == nil || !strings.Contains(second.out.String(), "give all coordinators the same keys") {
		t.Errorf("started with another key: %v\n%s", err, second.out)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	client(t, coordinator(t, dir, port), dir, port)
}

// A resource that the file leaves out although it is stored under a key of it
// stops the start with its name, instead of a cache that waits for ever.
func TestResourceLeftOut(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	file := filepath.Join(dir, "own.yaml")
	const config = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [%s]\n  providers:\n" +
		"  - secretbox: {keys: [{name: a, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}\n  - identity: {}\n"
	write := func(resources string) {
		if err := os.WriteFile(file, fmt.Appendf(nil, config, resources), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secrets, configmaps")
	first := coordinator(t, dir, port, "--encryption-provider-config", file)
	client(t, first, dir, port) // it makes ConfigMaps itself
	first.kill()
	write("secrets")
	second := coordinator(t, dir, port, "--encryption-provider-config", file)
	if err, ended := second.wait(30 * time.Second); !ended || err == nil || !strings.Contains(second.out.String(), "stored configmaps are under secretbox:a") {
		t.Errorf("started: %v\n%s", err, second.out)
	}
}

// Secrets that an earlier version wrote in the clear are encrypted by the first
// coordinator that encrypts.
func TestClearSecretsAreEncrypted(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	before, c := encrypted(t, filepath.Join(dir, "coordinator"), "")
	putSecrets(t, c, "s", 3)
	before.Stop()
	p := coordinator(t, dir, port)
	c = client(t, p, dir, port)
	soon(t, "all Secrets are encrypted", func() error {
		data, err := c.Discovery().RESTClient().Get().AbsPath(encryption.StatePath).DoRaw(t.Context())
		if err == nil && bytes.Contains(data, []byte(`"identity"`)) {
			err = fmt.Errorf("%s", data)
		}
		return err
	})
	checkSecrets(t, c, "s", 3)
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.wait(time.Minute)
	if !strings.Contains(p.out.String(), "are encrypted now") {
		t.Errorf("not told:\n%s", p.out)
	}
}

// What a Secret was before it was encrypted, or rotated, or deleted is not in the
// database's file afterwards, and the store works on.
func TestOldValuesAreForgotten(t *testing.T) {
	dir := t.TempDir()
	before, c := encrypted(t, dir, "")
	putSecrets(t, c, "old", 20)
	before.Stop()
	inFile := func() bool {
		t.Helper()
		found := false
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Base(path) != "db" {
				return err
			}
			data, err := os.ReadFile(path)
			found = found || bytes.Contains(data, []byte(oldValue))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if !inFile() {
		t.Fatal("the file never had the value: the test looks in the wrong place")
	}
	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	s, c := encrypted(t, dir, file)
	r, _ := rotationOf(t, s, file)
	if err := r.Rewrite(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, r.Out)
	}
	if inFile() {
		t.Error("after the rewrite the file still has values in the clear")
	}
	checkSecrets(t, c, "old", 20)
	putSecrets(t, c, "new", 3)
	for range 2 { // there is nothing more to forget, and that is no error
		if err := r.Run(t.Context(), time.Now()); err != nil {
			t.Fatalf("%v\n%s", err, r.Out)
		}
	}
	checkSecrets(t, c, "old", 20)
	checkSecrets(t, c, "new", 3)
	s.Stop()
	_, c = encrypted(t, dir, file)
	checkSecrets(t, c, "old", 20)
	checkSecrets(t, c, "new", 3)
}

// oldValue is "value of old" as the store encodes Secrets: as it is.
const oldValue = "value of old"

// elsewhere is a coordinator whose etcd is another's.
type elsewhere struct{ *inProcess }

func (e elsewhere) State(ctx context.Context) (encryption.State, error) {
	s, err := e.inProcess.State(ctx)
	s.Outside = true
	return s, err
}

func (elsewhere) Forget(context.Context) error { return errors.New("asked to forget") }

// With an etcd elsewhere the command says what is left to do.
func TestForgetElsewhere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "encryption.yaml")
	if err := encryption.File(file).Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	s, c := encrypted(t, dir, file)
	putSecrets(t, c, "s", 1)
	r, p := rotationOf(t, s, file)
	r.API = elsewhere{p}
	if err := r.Run(t.Context(), time.Now()); err != nil || !strings.Contains(fmt.Sprint(r.Out), "etcdctl defrag") {
		t.Errorf("%v\n%s", err, r.Out)
	}
}
