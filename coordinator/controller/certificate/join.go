package certificate

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/joinapi"
)

const (
	// keepUsedUp is how long a token that is used up can still read the certificate
	// that it asked for.
	keepUsedUp = 10 * time.Minute
	// maxCounted bounds the list of requests that were counted. It is read when the
	// approval after the count got lost, which soon is tried again.
	maxCounted = 64
)

// joinToken is the identity of the join token that made a request; empty for
// requests of others, tokens of kubeadm's kind among them.
func joinToken(c *certRequest) string {
	id, ok := strings.CutPrefix(c.Spec.Username, bootstrap.BootstrapUserPrefix)
	if !ok || !slices.Contains(c.Spec.Groups, joinapi.NodesGroup) {
		return ""
	}
	return id
}

// approveJoin approves what a join token asks for, or denies it with the reason: a
// token is for some machines, and none of them takes a live node's name. The use is
// counted before the approval, so that a crash between them never gives one more.
func (r *reconciler) approveJoin(ctx context.Context, c *certRequest, parsed *x509.CertificateRequest, id string) error {
	secrets := r.client.CoreV1().Secrets(metav1.NamespaceSystem)
	secret, err := secrets.Get(ctx, bootstrap.BootstrapTokenSecretPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return r.deny(ctx, c, joinapi.ReasonTokenUsedUp, "the token has been deleted")
	}
	if err != nil {
		return fmt.Errorf("approve request %s: %w", c.Name, err)
	}
	attempt, err := r.attempt(c, parsed, secret)
	if err != nil {
		return fmt.Errorf("approve request %s: %w", c.Name, err)
	}
	if reason, message := attempt.Refusal(); reason != "" {
		return r.deny(ctx, c, reason, message)
	}
	if next := countUse(secret, string(c.UID), time.Now()); next != nil {
		// The Secret's resourceVersion makes the count one step: of two requests for
		// the last use one fails here, and is denied when it is tried again.
		if _, err := secrets.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("approve request %s: %w", c.Name, err)
		}
	}
	return r.sayYes(ctx, c, "Auto approving kubelet client certificate asked for with join token "+id+".")
}

func (r *reconciler) attempt(c *certRequest, parsed *x509.CertificateRequest,
	secret *corev1.Secret) (joinapi.Attempt, error) {
	a := joinapi.Attempt{
		Name:    strings.TrimPrefix(parsed.Subject.CommonName, nodeUserPrefix),
		Replace: string(secret.Data[joinapi.ReplaceKey]),
		Uses:    string(secret.Data[joinapi.UsesKey]),
		Counted: slices.Contains(counted(secret), string(c.UID)),
	}
	node, err := r.nodes.Get(a.Name)
	if err == nil {
		a.Alive = slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	} else if !apierrors.IsNotFound(err) {
		return a, err
	}
	return a, nil
}

func counted(s *corev1.Secret) []string {
	return strings.Split(string(s.Data[joinapi.CountedKey]), ",")
}

// countUse is the token's Secret with one use less; nil when there is nothing to
// count. The last use leaves the token as long as its machine needs to read the
// certificate.
func countUse(s *corev1.Secret, request string, now time.Time) *corev1.Secret {
	uses, err := strconv.Atoi(string(s.Data[joinapi.UsesKey]))
	if err != nil || slices.Contains(counted(s), request) {
		return nil
	}
	s = s.DeepCopy()
	s.Data[joinapi.UsesKey] = []byte(strconv.Itoa(uses - 1))
	list := append(slices.DeleteFunc(counted(s), func(id string) bool { return id == "" }), request)
	s.Data[joinapi.CountedKey] = []byte(strings.Join(list[max(0, len(list)-maxCounted):], ","))
	if last := now.Add(keepUsedUp); uses <= 1 && expires(s).After(last) {
		s.Data[bootstrap.BootstrapTokenExpirationKey] = []byte(last.UTC().Format(time.RFC3339))
	}
	return s
}

// expires is when a token ends by itself; in a thousand years when never.
func expires(s *corev1.Secret) time.Time {
	at, err := time.Parse(time.RFC3339, string(s.Data[bootstrap.BootstrapTokenExpirationKey]))
	if err != nil {
		return time.Now().AddDate(1000, 0, 0)
	}
	return at
}

func (r *reconciler) deny(ctx context.Context, c *certRequest, reason, why string) error {
	c.Status.Conditions = append(c.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: reason, Message: why,
	})
	_, err := r.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, c.Name, c, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
