package token

import (
	"crypto"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// The paths of OpenID discovery (KEP-1393).
const (
	ConfigPath = "/.well-known/openid-configuration"
	KeysPath   = "/openid/v1/jwks"
)

// Discovery returns the handlers of ConfigPath and KeysPath. host is the
// server's external host:port for the key set's URL.
func Discovery(issuer, host string, keys []crypto.PublicKey) (map[string]http.Handler, error) {
	set, err := keySet(keys)
	if err != nil {
		return nil, fmt.Errorf("openid discovery: %w", err)
	}
	var algs []string
	for _, k := range set.Keys {
		algs = append(algs, k.Algorithm)
	}
	slices.Sort(algs)
	config := struct {
		Issuer        string   `json:"issuer"`
		KeysURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{issuer, "https://" + host + KeysPath, []string{"id_token"}, []string{"public"}, slices.Compact(algs)}
	configJSON, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("openid discovery: %w", err)
	}
	setJSON, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("openid discovery: %w", err)
	}
	return map[string]http.Handler{
		ConfigPath: fixed("application/json", configJSON),
		KeysPath:   fixed("application/jwk-set+json", setJSON),
	}, nil
}

func fixed(contentType string, body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		w.Write(body)
	})
}
