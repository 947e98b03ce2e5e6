package api

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestNoServer: a node without a kubeconfig asks nobody, and says so.
func TestNoServer(t *testing.T) {
	rc, err := Load("", "test")
	if rc != nil || err != nil {
		t.Fatal(rc, err)
	}
	s, err := Connect(Config{NodeName: "n", Log: slog.New(slog.DiscardHandler)})
	if err != nil || s.Configured() {
		t.Fatal(s, err)
	}
	_, token := s.RequestToken(t.Context(), "ns", "default", &authenticationv1.TokenRequest{})
	_, patch := s.Pods().PatchStatus(t.Context(), "ns", "p", nil)
	_, credentials := s.Credentials()
	for _, err := range []error{token, patch, credentials, s.Pods().Delete(t.Context(), "ns", "p", "u")} {
		if !errors.Is(err, ErrNone) {
			t.Errorf("got %v", err)
		}
	}
	if ca, err := s.CA(); ca != nil || err != nil {
		t.Errorf("CA %q, %v", ca, err)
	}
	s.Recorder(t.Context()).Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "", "Normal", "A", "b")
	s.Recorder(t.Context()).Node("Normal", "A", "b")
}

func TestBadKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, "test"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// TestRefusals: that the server does not know the node is told once, with the
// remedy, and again after it did.
func TestRefusals(t *testing.T) {
	answer := http.StatusUnauthorized
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	var said bytes.Buffer
	s, err := Connect(Config{
		Rest:       &rest.Config{Host: server.URL},
		Kubeconfig: "/etc/k",
		NodeName:   "n1",
		Log:        slog.New(slog.NewTextHandler(&said, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ answer, told int }{{401, 1}, {401, 1}, {200, 1}, {401, 2}} {
		answer = step.answer
		_, _ = s.Client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if n := strings.Count(said.String(), "does not take this node's credential"); n != step.told {
			t.Errorf("after %d it was told %d times, want %d", step.answer, n, step.told)
		}
	}
	if !strings.Contains(said.String(), "--user system:node:n1") || !strings.Contains(said.String(), "kubeconfig=/etc/k") {
		t.Errorf("no remedy: %s", said.String())
	}
}

// TestFollow: credentials are read when a file has changed; what cannot be used is
// told once, and tried until it can.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	write := func(ca string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
			"users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: 'https://h', certificate-authority: " +
			ca + "}}]\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"one": "first", "two": "second one"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	rc, err := Load(path, "test")
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	s := &Server{cfg: Config{Rest: rc, Kubeconfig: path, Log: slog.New(slog.NewTextHandler(&said, nil))}}
	if c, err := s.Credentials(); err != nil || string(c.CA) != "first" {
		t.Fatalf("%q, %v", c.CA, err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var used []string
		refuse := errors.New("not now")
		go func() {
			_ = s.Follow(ctx, func(c Credentials) error {
				mu.Lock()
				defer mu.Unlock()
				used = append(used, string(c.CA))
				return refuse
			})
		}()
		time.Sleep(2*followEvery + time.Second)
		write("two")
		time.Sleep(2 * followEvery)
		mu.Lock()
		refuse = nil
		mu.Unlock()
		time.Sleep(5 * followEvery)
		cancel()
		synctest.Wait()
		if got := strings.Join(used, ","); got != "second one,second one,second one" {
			t.Errorf("used %q", got)
		}
	})
	if n := strings.Count(said.String(), "not now"); n != 1 {
		t.Errorf("told %d times: %s", n, said.String())
	}
}
