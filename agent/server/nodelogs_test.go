package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNodeLogs(t *testing.T) {
	above := t.TempDir()
	dir := filepath.Join(above, "log")
	for name, text := range map[string]string{
		"secret": "of the node", "log/daemon.log": "a line", "log/apt/history.log": "b",
	} {
		file := filepath.Join(above, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out": "../secret", "far": filepath.Join(above, "secret"), "in": "daemon.log"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		dir, path string
		code      int
		want      string
	}{
		{dir, "/logs/", http.StatusOK, `<a href="daemon.log">`},
		{dir, "/logs/daemon.log", http.StatusOK, "a line"},
		{dir, "/logs/in", http.StatusOK, "a line"},
		{dir, "/logs/apt/", http.StatusOK, "history.log"},
		{dir, "/logs/none", http.StatusNotFound, ""},
		{dir, "/logs/out", http.StatusInternalServerError, ""},
		{dir, "/logs/far", http.StatusInternalServerError, ""},
		{dir, "/logs/..%2fsecret", http.StatusNotFound, ""},
		{filepath.Join(above, "none"), "/logs/", http.StatusNotFound, ""},
		{"", "/logs/", http.StatusMethodNotAllowed, "disabled"},
	} {
		w := httptest.NewRecorder()
		(&Server{NodeLogsDir: tt.dir}).nodeLogs(w, httptest.NewRequest(http.MethodGet, tt.path, nil))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.want) || strings.Contains(w.Body.String(), "of the node") {
			t.Errorf("%s of %q: %d %q, want %d %q", tt.path, tt.dir, w.Code, w.Body, tt.code, tt.want)
		}
	}
}
