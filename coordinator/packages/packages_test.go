package packages

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestShelf(t *testing.T) {
	s := &Shelf{Dir: filepath.Join(t.TempDir(), "packages"), Max: 20, Log: slog.New(slog.DiscardHandler)}
	ask := func(method, digest, body string) (int, string) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, Path+"?digest="+digest, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		name, method, digest, body string
		code                       int
	}{
		{"none yet", http.MethodGet, digestOf("one"), "", http.StatusNotFound},
		{"comes", http.MethodPut, digestOf("one"), "one", http.StatusCreated},
		{"comes again", http.MethodPut, digestOf("one"), "one", http.StatusCreated},
		{"another than it says", http.MethodPut, digestOf("two"), "other", http.StatusBadRequest},
		{"is not kept", http.MethodGet, digestOf("two"), "", http.StatusNotFound},
		{"too large", http.MethodPut, digestOf("large"), strings.Repeat("x", 21), http.StatusRequestEntityTooLarge},
		{"a path", http.MethodGet, "../secret", "", http.StatusBadRequest},
		{"no digest", http.MethodPut, "", "one", http.StatusBadRequest},
		{"upper case", http.MethodGet, strings.ToUpper(digestOf("one")), "", http.StatusBadRequest},
		{"another verb", http.MethodDelete, digestOf("one"), "", http.StatusMethodNotAllowed},
	} {
		if code, body := ask(c.method, c.digest, c.body); code != c.code {
			t.Errorf("%s: %d %s, not %d", c.name, code, body, c.code)
		}
	}
	if code, body := ask(http.MethodGet, digestOf("one"), ""); code != http.StatusOK || body != "one" {
		t.Errorf("%d %q", code, body)
	}
	// Nothing is left of what failed, and of what came the newest stay.
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(s.Dir, digestOf("one")), past, past); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"two", "three"} {
		if code, body := ask(http.MethodPut, digestOf(text), text); code != http.StatusCreated {
			t.Errorf("%s: %d %s", text, code, body)
		}
	}
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != digestOf("two") && f.Name() != digestOf("three") {
			t.Errorf("%s is left", f.Name())
		}
	}
	if len(files) != 2 {
		t.Errorf("%d files", len(files))
	}
}
