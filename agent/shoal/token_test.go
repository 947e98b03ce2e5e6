package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/jointoken"
	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// tokenAPI is the API as `shoal token` needs it.
type tokenAPI struct {
	t         *testing.T
	ca        *pki.Authority
	secrets   map[string]tokenSecret
	addresses []string
}

func (f *tokenAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, secretsPath+"/")
	switch {
	case r.URL.Path == joinapi.CAPath:
		_, _ = w.Write(f.ca.PEM)
	case strings.Contains(r.URL.Path, "endpointslices"):
		f.respond(w, map[string]any{"items": []any{map[string]any{
			"ports":     []any{map[string]int{"port": 6443}},
			"endpoints": []any{map[string]any{"addresses": f.addresses}},
		}}})
	case r.Method == http.MethodPost:
		var s tokenSecret
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			f.t.Error(err)
		}
		s.Data = map[string][]byte{}
		for k, v := range s.StringData {
			s.Data[k] = []byte(v)
		}
		f.secrets[s.Metadata.Name] = s
		f.respond(w, s)
	case r.Method == http.MethodDelete && f.secrets[name].Type == "":
		http.Error(w, "no such secret", http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(f.secrets, name)
		f.respond(w, map[string]any{})
	default:
		var items []tokenSecret
		for _, s := range f.secrets {
			items = append(items, s)
		}
		f.respond(w, map[string]any{"items": items})
	}
}

func (f *tokenAPI) respond(w http.ResponseWriter, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Error(err)
	}
}

// newTokens is a cluster's tokens, and the API that keeps them.
func newTokens(t *testing.T) (*tokenOptions, *tokenAPI) {
	t.Helper()
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := ca.Issue(pki.Spec{User: "kube-apiserver", Names: []string{apiName}, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	f := &tokenAPI{t: t, ca: ca, secrets: map[string]tokenSecret{}, addresses: []string{"192.0.2.2", "127.0.0.1", "192.0.2.1"}}
	s := httptest.NewUnstartedServer(f)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	own, key, err := ca.Issue(pki.Spec{User: "admin"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	data, err := newKubeconfig(s.URL, apiName, "admin", identity{cert: own, key: key, ca: ca.PEM})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return &tokenOptions{options: defaultOptions(), kubeconfig: file, ttl: time.Hour, uses: 1}, f
}

// TestTokens: what a token says is what its Secret holds; lists show no secret.
func TestTokens(t *testing.T) {
	o, f := newTokens(t)
	f.secrets["bootstrap-token-kubead"] = tokenSecret{Type: tokenType, // kubeadm's kind
		Data: map[string][]byte{"token-id": []byte("kubead"), "auth-extra-groups": []byte("system:bootstrappers:kubeadm")}}
	var out bytes.Buffer
	o.replace = "n1"
	if err := o.create(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	tok, err := jointoken.Decode(out.String())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tok.Servers, []string{"192.0.2.1:6443", "192.0.2.2:6443"}) ||
		!bytes.Equal(tok.CA, jointoken.HashCA(f.ca.Cert)) {
		t.Errorf("%+v", tok)
	}
	s := f.secrets[tokenPrefix+tok.ID]
	for key, want := range map[string]string{
		"token-id": tok.ID, "token-secret": tok.Secret, "usage-bootstrap-authentication": "true",
		"auth-extra-groups": joinapi.NodesGroup, joinapi.UsesKey: "1", joinapi.ReplaceKey: "n1",
		"expiration": stamp(time.Unix(tok.Expires, 0)),
	} {
		if got := string(s.Data[key]); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	out.Reset()
	if err := o.list(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Contains(lines[1], tok.Secret) {
		t.Fatalf("listed %q", lines)
	}
	for _, want := range []string{tok.ID, s.expiration(), "1", "n1"} {
		if !slices.Contains(strings.Fields(lines[1]), want) {
			t.Errorf("no %s in %q", want, lines[1])
		}
	}
	if err := o.delete(t.Context(), &out, []string{tok.ID}); err != nil || f.secrets[tokenPrefix+tok.ID].Type != "" {
		t.Errorf("%v, %v", f.secrets, err)
	}
	if err := o.delete(t.Context(), &out, []string{tok.ID}); err == nil ||
		!strings.Contains(err.Error(), "there is no token "+tok.ID) {
		t.Error(err)
	}
	o.uses, o.replace, o.servers = 0, "", []string{"api.example.com:443"}
	out.Reset()
	if err := o.create(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if tok, err = jointoken.Decode(out.String()); err != nil || tok.Servers[0] != "api.example.com:443" ||
		len(f.secrets[tokenPrefix+tok.ID].Data[joinapi.UsesKey]) > 0 {
		t.Errorf("%+v, %v", tok, err)
	}
	if err := o.delete(t.Context(), &out, []string{out.String()}); err != nil { // by its text
		t.Error(err)
	}
}

// TestTokenRefused: a flag that is wrong is named, and nothing is made.
func TestTokenRefused(t *testing.T) {
	o, f := newTokens(t)
	for want, change := range map[string]func(o *tokenOptions){
		"--ttl 0s":             func(o *tokenOptions) { o.ttl = 0 },
		"--uses -1":            func(o *tokenOptions) { o.uses = -1 },
		"--uses 1001":          func(o *tokenOptions) { o.uses = maxUses + 1 },
		"--server: address":    func(o *tokenOptions) { o.servers = []string{"a b"} },
		"set advertiseAddress": func(*tokenOptions) { f.addresses = []string{"127.0.0.1"} },
	} {
		one := *o
		change(&one)
		if err := one.create(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if len(f.secrets) > 0 {
		t.Errorf("%v", f.secrets)
	}
}
