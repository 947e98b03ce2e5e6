package token

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

const (
	// ExtendedSeconds is the lifetime a pod's own token asks for in the volume
	// that the ServiceAccount admission plugin adds. Such a token really lives
	// for a year, for old clients that never read the file again, and is only
	// marked as stale after this time.
	ExtendedSeconds = 60*60 + 7

	extendedLifetime = 365 * 24 * time.Hour
)

// LongestLife is that of tokens of pods. A request may ask for a longer one, which ends
// with its key (docs/security.md).
const LongestLife = extendedLifetime

// claims are the private claims of a service account token, under
// "kubernetes.io".
type claims struct {
	Kubernetes subject `json:"kubernetes.io,omitzero"`
}

type subject struct {
	Namespace      string           `json:"namespace,omitempty"`
	ServiceAccount ref              `json:"serviceaccount,omitzero"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type ref struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// Issuer signs service account tokens.
type Issuer struct {
	issuer    string
	audiences []string
	keys      *Keys
	nodeUID   func(name string) string
}

// IssuerConfig is what NewIssuer needs.
type IssuerConfig struct {
	Issuer    string   // the "iss" claim, an https URL
	Audiences []string // the API server's; used when a request names none
	Keys      *Keys
	// NodeUID returns the UID of a node for the tokens of its pods, "" when it
	// is not known.
	NodeUID func(name string) string
}

// NewIssuer returns an issuer; the key decides the algorithm (P-256: ES256).
func NewIssuer(c IssuerConfig) *Issuer {
	return &Issuer{issuer: c.Issuer, audiences: c.Audiences, keys: c.Keys, nodeUID: c.NodeUID}
}

// Issue signs a token that lives for the given seconds or, when bound is a Pod,
// Secret or Node, until that is gone. expires is what the client is told:
// the time to fetch a new one.
func (i *Issuer) Issue(sa *corev1.ServiceAccount, audiences []string, seconds int64,
	bound runtime.Object) (token string, expires time.Time, err error) {
	return i.issue(time.Now(), sa, audiences, seconds, bound)
}

func (i *Issuer) issue(now time.Time, sa *corev1.ServiceAccount, audiences []string, seconds int64,
	bound runtime.Object) (string, time.Time, error) {
	if len(audiences) == 0 {
		audiences = i.audiences
	}
	private := claims{subject{Namespace: sa.Namespace, ServiceAccount: ref{Name: sa.Name, UID: string(sa.UID)}}}
	if err := i.bind(&private.Kubernetes, bound); err != nil {
		return "", time.Time{}, err
	}
	lifetime := time.Duration(seconds) * time.Second
	expires := now.Add(lifetime)
	if private.Kubernetes.Pod != nil && seconds == ExtendedSeconds && i.forAPIServer(audiences) {
		private.Kubernetes.WarnAfter = jwt.NewNumericDate(expires)
		lifetime = extendedLifetime
	}
	public := jwt.Claims{
		Issuer:    i.issuer,
		Subject:   serviceaccount.MakeUsername(sa.Namespace, sa.Name),
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(now.Add(lifetime)),
		ID:        uuid.NewString(),
	}
	token, err := jwt.Signed(i.keys.signer()).Claims(private).Claims(public).Claims(audience{audiences}).Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign token: %w", err)
	}
	return token, expires, nil
}

// audience is the claim "aud" as the API server of Kubernetes writes it: always a list.
type audience struct {
	Audiences []string `json:"aud"`
}

// Dropped tells whether a token was signed with a key that is not accepted any more.
func (i *Issuer) Dropped(token string) bool { return i.keys.Dropped(token) }

// Audiences are those of a token for which none are asked.
func (i *Issuer) Audiences() []string { return slices.Clone(i.audiences) }

func (i *Issuer) bind(s *subject, bound runtime.Object) error {
	switch o := bound.(type) {
	case nil:
	case *corev1.Pod:
		s.Pod = &ref{Name: o.Name, UID: string(o.UID)}
		if o.Spec.NodeName != "" {
			s.Node = &ref{Name: o.Spec.NodeName}
			if i.nodeUID != nil {
				s.Node.UID = i.nodeUID(o.Spec.NodeName)
			}
		}
	case *corev1.Secret:
		s.Secret = &ref{Name: o.Name, UID: string(o.UID)}
	case *corev1.Node:
		s.Node = &ref{Name: o.Name, UID: string(o.UID)}
	default:
		return fmt.Errorf("cannot bind token to object of type %T", bound)
	}
	return nil
}

func (i *Issuer) forAPIServer(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(i.audiences, a) {
			return false
		}
	}
	return true
}
