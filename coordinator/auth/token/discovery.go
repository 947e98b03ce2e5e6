package token

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// The paths of OpenID discovery (KEP-1393).
const (
	ConfigPath = "/.well-known/openid-configuration"
	KeysPath   = "/openid/v1/jwks"
)

// Discovery returns the handlers of ConfigPath and KeysPath. host is the
// server's external host:port for the key set's URL.
func Discovery(issuer, host string, keys *Keys) map[string]http.Handler {
	return map[string]http.Handler{
		ConfigPath: show("application/json", func() any {
			return struct {
				Issuer        string   `json:"issuer"`
				KeysURI       string   `json:"jwks_uri"`
				ResponseTypes []string `json:"response_types_supported"`
				SubjectTypes  []string `json:"subject_types_supported"`
				Algorithms    []string `json:"id_token_signing_alg_values_supported"`
			}{issuer, "https://" + host + KeysPath, []string{"id_token"}, []string{"public"}, keys.current.Load().algs}
		}),
		KeysPath: show("application/jwk-set+json", func() any { return keys.public() }),
	}
}

func show(contentType string, what func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(what())
		if err != nil {
			http.Error(w, fmt.Sprintf("openid discovery: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body)
	})
}
