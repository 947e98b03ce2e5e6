package gossipkeys

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// Keys go to an agent by the proxy subresource of its Node.
func TestNodes(t *testing.T) {
	file := strings.Repeat("A", 43) + "=\n"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`)
	})
	mux.HandleFunc("PUT /api/v1/nodes/a/proxy/gossip/keys", func(w http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); err != nil || string(got) != file {
			t.Errorf("%q %v", got, err)
		}
		_ = json.NewEncoder(w).Encode([]string{"print"})
	})
	mux.HandleFunc("PUT /api/v1/nodes/b/proxy/gossip/keys", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "no list")
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	n, err := NewNodes(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	names, err := n.Names(t.Context())
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%v %v", names, err)
	}
	prints, err := n.Give(t.Context(), "a", []byte(file))
	if err != nil || !slices.Equal(prints, []string{"print"}) {
		t.Errorf("%v %v", prints, err)
	}
	for node, want := range map[string]string{"b": "earlier version", "c": "could not find"} {
		if _, err := n.Give(t.Context(), node, []byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", node, err, want)
		}
	}
}
