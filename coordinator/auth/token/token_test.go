package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

const issuer = "https://kubernetes.default.svc.cluster.local"

// memory is a cluster's objects by name; tests change it between issue and check.
type memory struct {
	sa     *corev1.ServiceAccount
	pod    *corev1.Pod
	secret *corev1.Secret
	node   *corev1.Node
}

func found[T any](o *T) (*T, error) {
	if o == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("x"), "x")
	}
	return o, nil
}

func (m *memory) ServiceAccount(context.Context, string, string) (*corev1.ServiceAccount, error) {
	return found(m.sa)
}
func (m *memory) Pod(context.Context, string, string) (*corev1.Pod, error) { return found(m.pod) }
func (m *memory) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return found(m.secret)
}
func (m *memory) Node(context.Context, string) (*corev1.Node, error) { return found(m.node) }

func newMemory() *memory {
	return &memory{
		sa: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-1"}},
		pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-1"},
			Spec: corev1.PodSpec{NodeName: "node"}},
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "secret", UID: "secret-1"}},
		node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-1"}},
	}
}

func newPair(t testing.TB, m *memory) (*Issuer, *Authenticator) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	i := NewIssuer(
		IssuerConfig{Issuer: issuer, Audiences: []string{issuer}, Keys: keys, NodeUID: func(string) string { return "node-1" }})
	return i, NewAuthenticator(
		AuthenticatorConfig{Issuer: issuer, Audiences: []string{issuer}, Keys: keys, Objects: m})
}

func TestRoundTrip(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	deleted := metav1.NewTime(now.Add(-2 * time.Minute))
	for name, tt := range map[string]struct {
		bound     func(*memory) runtime.Object
		audiences []string
		change    func(*memory)
		seconds   int64
		after     time.Duration
		err       string
		extra     map[string]string
	}{
		"unbound": {},
		"pod": {bound: boundPod,
			extra: map[string]string{"authentication.kubernetes.io/pod-name": "pod",
				"authentication.kubernetes.io/pod-uid": "pod-1", "authentication.kubernetes.io/node-name": "node",
				"authentication.kubernetes.io/node-uid": "node-1"}},
		"pod_gone":        {bound: boundPod, change: func(m *memory) { m.pod = nil }, err: "service account token has been invalidated"},
		"pod_recreated":   {bound: boundPod, change: func(m *memory) { m.pod.UID = "pod-2" }, err: "pod UID (pod-2) does not match service account pod ref claim (pod-1)"},
		"pod_terminating": {bound: boundPod, change: func(m *memory) { m.pod.DeletionTimestamp = &deleted }, err: "service account token has been invalidated"},
		"pod_node_gone":   {bound: boundPod, change: func(m *memory) { m.node = nil }},
		"secret":          {bound: func(m *memory) runtime.Object { return m.secret }},
		"secret_gone": {bound: func(m *memory) runtime.Object { return m.secret },
			change: func(m *memory) { m.secret = nil }, err: "service account token has been invalidated"},
		"node": {bound: func(m *memory) runtime.Object { return m.node },
			extra: map[string]string{"authentication.kubernetes.io/node-name": "node"}},
		"node_recreated": {bound: func(m *memory) runtime.Object { return m.node },
			change: func(m *memory) { m.node.UID = "node-2" }, err: "node UID (node-2) does not match service account node ref claim (node-1)"},
		"account_gone":    {change: func(m *memory) { m.sa = nil }, err: `x "x" not found`},
		"account_new":     {change: func(m *memory) { m.sa.UID = "sa-2" }, err: "service account UID (sa-2) does not match claim (sa-1)"},
		"account_deleted": {change: func(m *memory) { m.sa.DeletionTimestamp = &deleted }, err: "service account ns/sa has been deleted"},
		"expired":         {seconds: 600, after: 12 * time.Minute, err: "service account token has expired"},
		"not_yet":         {after: -2 * time.Minute, err: "service account token is not valid yet"},
		"extended":        {bound: boundPod, seconds: ExtendedSeconds, after: 300 * 24 * time.Hour},
		"extended_over":   {bound: boundPod, seconds: ExtendedSeconds, after: 366 * 24 * time.Hour, err: "service account token has expired"},
		"extended_other": {bound: boundPod, seconds: ExtendedSeconds, audiences: []string{"vault"},
			after: 2 * time.Hour, err: `token audiences ["vault"] is invalid for the target audiences ["` + issuer + `"]`},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			i, a := newPair(t, m)
			var bound runtime.Object
			if tt.bound != nil {
				bound = tt.bound(m)
			}
			if tt.seconds == 0 {
				tt.seconds = 3600
			}
			token, expires, err := i.issue(now, m.sa, tt.audiences, tt.seconds, bound)
			if err != nil {
				t.Fatal(err)
			}
			if want := now.Add(time.Duration(tt.seconds) * time.Second); !expires.Equal(want) {
				t.Errorf("expires %v, want %v", expires, want)
			}
			if tt.change != nil {
				tt.change(m)
			}
			resp, ok, err := a.authenticate(context.Background(), token, now.Add(tt.after))
			if tt.err != "" {
				if ok || err == nil || err.Error() != tt.err {
					t.Fatalf("got %v %v, want error %q", ok, err, tt.err)
				}
				return
			}
			if err != nil || !ok {
				t.Fatalf("got %v %v", ok, err)
			}
			if name := resp.User.GetName(); name != "system:serviceaccount:ns:sa" {
				t.Errorf("user %q", name)
			}
			for k, v := range tt.extra {
				if got := resp.User.GetExtra()[k]; len(got) != 1 || got[0] != v {
					t.Errorf("extra %s is %q, want %q", k, got, v)
				}
			}
		})
	}
}

func boundPod(m *memory) runtime.Object { return m.pod }

func TestOtherAudience(t *testing.T) {
	m := newMemory()
	i, a := newPair(t, m)
	token, _, err := i.Issue(m.sa, []string{"vault"}, 3600, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := authenticator.WithAudiences(context.Background(), []string{"vault", "other"})
	resp, ok, err := a.AuthenticateToken(ctx, token)
	if err != nil || !ok || len(resp.Audiences) != 1 || resp.Audiences[0] != "vault" {
		t.Errorf("got %v %v %v", resp, ok, err)
	}
}

// Readers of tokens outside the cluster find a list, also of one audience.
func TestAudienceClaimIsAList(t *testing.T) {
	m := newMemory()
	i, _ := newPair(t, m)
	for name, audiences := range map[string][]string{"asked": {"vault"}, "default": nil} {
		t.Run(name, func(t *testing.T) {
			token, _, err := i.Issue(m.sa, audiences, 3600, nil)
			if err != nil {
				t.Fatal(err)
			}
			payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
			if err != nil {
				t.Fatal(err)
			}
			var claims struct {
				Audiences []string `json:"aud"`
			}
			want := audiences
			if want == nil {
				want = i.Audiences()
			}
			if err := json.Unmarshal(payload, &claims); err != nil || !slices.Equal(claims.Audiences, want) {
				t.Errorf("%v in %s, want %q", err, payload, want)
			}
		})
	}
}

func TestForgedTokens(t *testing.T) {
	m := newMemory()
	i, a := newPair(t, m)
	stranger, _ := newPair(t, m)
	good, _, _ := i.Issue(m.sa, nil, 3600, nil)
	forged, _, _ := stranger.Issue(m.sa, nil, 3600, nil)
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."
	for name, token := range map[string]string{
		"other_key": forged, "no_algorithm": none, "cut": parts[0] + "." + parts[1] + ".",
		"swapped": parts[0] + "." + strings.Split(forged, ".")[1] + "." + parts[2],
		"empty":   "", "not_a_token": "abc", "bootstrap": "abcdef.0123456789abcdef",
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok, _ := a.AuthenticateToken(context.Background(), token); ok {
				t.Error("accepted")
			}
		})
	}
}

func TestBootstrap(t *testing.T) {
	secret := func(change func(map[string]string)) *corev1.Secret {
		data := map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:shoal:node",
		}
		if change != nil {
			change(data)
		}
		s := &corev1.Secret{Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{}}
		for k, v := range data {
			s.Data[k] = []byte(v)
		}
		return s
	}
	set := func(k, v string) func(map[string]string) { return func(m map[string]string) { m[k] = v } }
	for name, tt := range map[string]struct {
		secret *corev1.Secret
		token  string
		ok     bool
	}{
		"good":         {secret(nil), "abcdef.0123456789abcdef", true},
		"wrong_secret": {secret(nil), "abcdef.0123456789abcdee", false},
		"unknown":      {nil, "abcdef.0123456789abcdef", false},
		"not_a_token":  {secret(nil), "abcdef", false},
		"expired":      {secret(set("expiration", "2020-01-01T00:00:00Z")), "abcdef.0123456789abcdef", false},
		"valid_until":  {secret(set("expiration", "2999-01-01T00:00:00Z")), "abcdef.0123456789abcdef", true},
		"other_use":    {secret(set("usage-bootstrap-authentication", "false")), "abcdef.0123456789abcdef", false},
		"bad_group":    {secret(set("auth-extra-groups", "system:masters")), "abcdef.0123456789abcdef", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := Bootstrap{Secret: func(_ context.Context, namespace, name string) (*corev1.Secret, error) {
				if namespace != "kube-system" || name != "bootstrap-token-abcdef" {
					t.Errorf("asked for %s/%s", namespace, name)
				}
				return found(tt.secret)
			}}
			resp, ok, err := b.AuthenticateToken(context.Background(), tt.token)
			if err != nil || ok != tt.ok {
				t.Fatalf("got %v %v", ok, err)
			}
			if ok && (resp.User.GetName() != "system:bootstrap:abcdef" || len(resp.User.GetGroups()) != 2) {
				t.Errorf("user %v", resp.User)
			}
		})
	}
}

func TestDiscovery(t *testing.T) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	set, err := NewKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	handlers := Discovery(issuer, "10.0.0.1:6443", set)
	rec := httptest.NewRecorder()
	handlers[ConfigPath].ServeHTTP(rec, httptest.NewRequest("GET", ConfigPath, nil))
	var config map[string]any
	if err := json.Unmarshal(rec.Body.Bytes(), &config); err != nil {
		t.Fatal(err)
	}
	if config["issuer"] != issuer || config["jwks_uri"] != "https://10.0.0.1:6443/openid/v1/jwks" {
		t.Errorf("config %v", config)
	}
	rec = httptest.NewRecorder()
	handlers[KeysPath].ServeHTTP(rec, httptest.NewRequest("GET", KeysPath, nil))
	if body := rec.Body.String(); !strings.Contains(body, `"alg":"ES256"`) || strings.Contains(body, `"d":`) {
		t.Errorf("keys %s", body)
	}
}

// Tokens of a key that does not sign any more are good for as long as it is accepted,
// and the key set shows it as long.
func TestSetKeys(t *testing.T) {
	m := newMemory()
	i, a := newPair(t, m)
	accepted := func(token string) bool {
		t.Helper()
		_, ok, _ := a.AuthenticateToken(t.Context(), token)
		return ok
	}
	issue := func() string {
		t.Helper()
		token, _, err := i.Issue(m.sa, nil, 3600, m.pod)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	set := func(signer crypto.Signer, others ...crypto.PublicKey) (shown int) {
		t.Helper()
		if err := a.Keys.Set(signer, others...); err != nil {
			t.Fatal(err)
		}
		rec := httptest.NewRecorder()
		Discovery(issuer, "h", a.Keys)[KeysPath].ServeHTTP(rec, httptest.NewRequest("GET", KeysPath, nil))
		return strings.Count(rec.Body.String(), `"kid"`)
	}
	one, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	two, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if n := set(one, two.Public(), one.Public()); n != 2 {
		t.Errorf("%d keys are shown", n)
	}
	old := issue()
	if n := set(two, one.Public()); n != 2 || !accepted(old) {
		t.Errorf("%d keys, the old token accepted: %v", n, accepted(old))
	}
	next := issue()
	if i.Dropped(old) || i.Dropped(next) || i.Dropped("a.b.c") {
		t.Error("an accepted key, or none, is said to be dropped")
	}
	if n := set(two); n != 1 || accepted(old) || !accepted(next) {
		t.Errorf("%d keys, the old token accepted: %v, the new one: %v", n, accepted(old), accepted(next))
	}
	if !i.Dropped(old) || i.Dropped(next) {
		t.Error("the old token's key is dropped, and the new one's not")
	}
}

// FuzzToken: what anybody may send as a token is refused without a panic, unless
// it is one of ours.
func FuzzToken(f *testing.F) {
	m := newMemory()
	i, a := newPair(f, m)
	good, _, err := i.Issue(m.sa, nil, 3600, m.pod)
	if err != nil {
		f.Fatal(err)
	}
	header, rest, _ := strings.Cut(good, ".")
	payload, _, _ := strings.Cut(rest, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for _, seed := range []string{
		good, good[:len(good)-3], none + "." + payload + ".", header + "." + payload + "." + payload,
		"abcdef.0123456789abcdef", "ABCDEF.0123456789abcdef",
		"..", `e30.` + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+issuer+`"}`)) + `.`,
		"", strings.Repeat(".", 100),
	} {
		f.Add(seed)
	}
	stored := &corev1.Secret{Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
		"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
		"usage-bootstrap-authentication": []byte("true"),
	}}
	b := Bootstrap{Secret: func(context.Context, string, string) (*corev1.Secret, error) { return stored, nil }}
	f.Fuzz(func(t *testing.T, token string) {
		resp, ok, _ := Bounded{a}.AuthenticateToken(t.Context(), token)
		if ok && (resp.User.GetName() != "system:serviceaccount:ns:sa" || !strings.Contains(token, ".")) {
			t.Errorf("%q is of %v", token, resp.User)
		}
		if _, ok, err := b.AuthenticateToken(t.Context(), token); err != nil || ok != (token == "abcdef.0123456789abcdef") {
			t.Errorf("%q as a bootstrap token: %v, %v", token, ok, err)
		}
	})
}
