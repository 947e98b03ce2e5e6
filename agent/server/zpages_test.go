package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestZpages: /statusz and /flagz are texts for people and objects for who asks for them.
func TestZpages(t *testing.T) {
	s := &Server{About: About{Version: "v1.36.3+shoal", Flags: map[string]string{"port": "10250", "address": "::"}}}
	const v1beta1 = "application/json;v=v1beta1;g=config.k8s.io;as="
	for _, tt := range []struct {
		page    http.HandlerFunc
		accept  string
		code    int
		content string
		want    []string
	}{
		{s.statusz([]string{"/healthz", "/statusz"}), "", 200, "text/plain; charset=utf-8", []string{"\nkubelet statusz\nWarning: ",
			"\nStarted: ", "\nUp: 0 hr ", "\nGo version: go1.", "\nBinary version: v1.36.3+shoal\nEmulation version: 1.36\n",
			"\nPaths: /healthz /statusz\n"}},
		{s.statusz(nil), "application/json, */*", 200, "text/plain; charset=utf-8", []string{"kubelet statusz"}},
		{s.statusz([]string{"/healthz"}), v1beta1 + "Statusz", 200, "application/json", []string{`"kind":"Statusz"`,
			`"apiVersion":"config.k8s.io/v1beta1"`, `"name":"kubelet"`, `"emulationVersion":"1.36"`, `"paths":["/healthz"]`}},
		{s.flagz, "text/plain", 200, "text/plain; charset=utf-8",
			[]string{"\nkubelet flagz\nWarning: ", " only.\naddress=::\nport=10250\n"}},
		{s.flagz, v1beta1 + "Flagz", 200, "application/json", []string{`"kind":"Flagz"`, `"flags":{"address":"::","port":"10250"}`}},
		{s.flagz, strings.Replace(v1beta1, "beta", "alpha", 1) + "Flagz", 200, "application/json", []string{"config.k8s.io/v1alpha1"}},
		{s.flagz, v1beta1 + "Statusz", 406, "text/plain; charset=utf-8", nil},
		{s.flagz, "application/json", 406, "text/plain; charset=utf-8", nil},
		{s.flagz, "application/yaml, text/plain;q=0.5", 200, "text/plain; charset=utf-8", nil},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", tt.accept)
		w := httptest.NewRecorder()
		tt.page(w, r)
		if got := w.Header().Get("Content-Type"); w.Code != tt.code || got != tt.content {
			t.Errorf("%q: %d %q, want %d %q", tt.accept, w.Code, got, tt.code, tt.content)
		}
		if tt.content == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: %s", tt.accept, w.Body)
		}
		for _, want := range tt.want {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%q: %q, want %q", tt.accept, w.Body, want)
			}
		}
	}
}
