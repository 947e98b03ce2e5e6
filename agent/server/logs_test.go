package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/agent/logs"
)

// TestPastLogs: the log of a pod that is gone is shown as long as it is kept, to who names
// its UID.
func TestPastLogs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "0.log")
	text := "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stdout F two\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(newCluster("reader get proxy"))
	s.PastLogs = func(p Past) (logs.File, bool) {
		return logs.File{Dir: dir, Path: file}, p == Past{Namespace: "ns", Pod: "p", UID: "1", Container: "c"}
	}
	for query, want := range map[string]string{
		"?uid=1": "one\ntwo\n", "?uid=1&tailLines=1&follow=true": "two\n",
		"?uid=1&previous=true": "not kept, or no longer", "?uid=2": "not kept, or no longer", "": "does not exist",
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/containerLogs/ns/p/c"+query, nil)
		r.Header.Set("Authorization", "Bearer token-of-reader")
		s.handler().ServeHTTP(w, r)
		if ok := w.Code == http.StatusOK; !strings.Contains(w.Body.String(), want) || ok != strings.HasSuffix(want, "\n") {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}
