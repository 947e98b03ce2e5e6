package bootstraptoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	bootstrapsecret "k8s.io/cluster-bootstrap/util/secrets"
)

// isToken tells whether a Secret is a bootstrap token.
func isToken(s *corev1.Secret) bool {
	return s.Type == bootstrap.SecretTypeBootstrapToken && s.Namespace == metav1.NamespaceSystem
}

// signer returns the token that a Secret may sign with.
func signer(s *corev1.Secret, now time.Time) (id, secret string, ok bool) {
	get := func(key string) string { return bootstrapsecret.GetData(s, key) }
	id, named := bootstrapsecret.ParseName(s.Name)
	secret = get(bootstrap.BootstrapTokenSecretKey)
	ok = named && id == get(bootstrap.BootstrapTokenIDKey) && secret != "" &&
		get(bootstrap.BootstrapTokenUsageSigningKey) == "true" && !bootstrapsecret.HasExpired(s, now)
	return id, secret, ok
}

// sign returns what a ConfigMap's data is with the signatures of tokens, and no
// other ones. Without a kubeconfig there is nothing to sign, and it stays.
func sign(data map[string]string, tokens []*corev1.Secret, now time.Time) map[string]string {
	content, ok := data[bootstrap.KubeConfigKey]
	if !ok {
		return data
	}
	out := maps.Clone(data)
	maps.DeleteFunc(out, func(key, _ string) bool { return strings.HasPrefix(key, bootstrap.JWSSignatureKeyPrefix) })
	for _, s := range tokens {
		if id, secret, ok := signer(s, now); ok {
			out[bootstrap.JWSSignatureKeyPrefix+id] = signature(content, id, secret)
		}
	}
	return out
}

// signature is a JWS of content (RFC 7515, HS256) without the content (its appendix
// F). Key and identity are a token's: the key is shorter than general libraries
// accept for HS256.
func signature(content, id, secret string) string {
	encode := base64.RawURLEncoding.EncodeToString
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		return "" // two strings; it cannot fail
	}
	protected := encode(header)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(protected + "." + encode([]byte(content))))
	return protected + ".." + encode(mac.Sum(nil))
}
