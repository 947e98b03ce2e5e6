package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
)

func TestMembersOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(file, []byte("runDir: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := membersOptions{where: where{config: file}}
	var out bytes.Buffer
	if err := o.run(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "gossip.sock") {
		t.Errorf("no agent: %v", err)
	}
	g, err := gossip.New(gossip.Config{Name: "anna", BindAddr: "127.0.0.1", BindPort: -1,
		Meta: gossip.Meta{Role: gossip.RoleAgent, Zone: "north"}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.SetDigest(gossip.Digest{Version: "v1.36", Pods: 7,
		Pressure: []gossip.Pressure{gossip.DiskPressure, gossip.PIDPressure}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.ServeView(ctx, filepath.Join(dir, gossip.ViewSocket)) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err = o.run(t.Context(), &out); err == nil || time.Now().After(deadline) {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); err != nil ||
		!strings.HasPrefix(got, "NAME ROLE STATE SINCE ADDRESS ZONE VERSION PODS PRESSURE ROUND TRIP SAID BY "+
			"anna agent alive") ||
		!strings.HasSuffix(got, "north v1.36 7 disk,pid (this view) itself") {
		t.Errorf("%v: %s", err, got)
	}
}

func TestMembersOfANode(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/berta/proxy/gossip/members" {
			http.NotFound(w, r)
			return
		}
		w.Write([]byte(`[{"name":"berta","role":"agent","state":"alive","addr":"192.0.2.1:7946","zone":"a\u001b[2J",` +
			`"roundTripSeconds":0.0123,"saidBy":"berta"},` +
			`{"name":"clara","role":"agent","state":"dead","saidBy":"d\u0007","version":"v\u001b","pods":3,"pressure":["\u001b"]}]`))
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfigOf(t, srv), 0o600); err != nil {
		t.Fatal(err)
	}
	o := membersOptions{node: "berta", kubeconfig: file}
	var out bytes.Buffer
	err := o.run(t.Context(), &out)
	if got := strings.Join(strings.Fields(out.String()), " "); err != nil ||
		!strings.Contains(got, `192.0.2.1:7946 "a\x1b[2J" - - - 12.3 ms itself clara agent dead`) ||
		!strings.HasSuffix(got, ` - "v\x1b" 3 "\x1b" - "d\a"`) {
		t.Errorf("%v: %s", err, got)
	}
	o.node = "../nodes"
	if err := o.run(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "../nodes") {
		t.Errorf("a node that is none: %v", err)
	}
	o.node = ""
	if err := o.run(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "--node") {
		t.Errorf("kubeconfig without node: %v", err)
	}
}

// kubeconfigOf leads to a test server, whose certificate serves as the client's too.
func kubeconfigOf(t *testing.T, srv *httptest.Server) []byte {
	t.Helper()
	own := srv.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})
	data, err := newKubeconfig(srv.URL, "", "admin", identity{cert: cert, ca: cert,
		key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})})
	if err != nil {
		t.Fatal(err)
	}
	return data
}
