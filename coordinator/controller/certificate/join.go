package certificate

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/joining"
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
	if next := joining.CountUse(secret, string(c.UID), time.Now()); next != nil {
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
		Counted: joining.Counted(secret, string(c.UID)),
	}
	node, err := r.nodes.Get(a.Name)
	if err == nil {
		a.Alive = joining.Alive(node)
	} else if !apierrors.IsNotFound(err) {
		return a, err
	}
	return a, nil
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
