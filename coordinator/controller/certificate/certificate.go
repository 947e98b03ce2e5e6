package certificate

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// Signer is the cluster's CA (*pki.Authority).
type Signer interface {
	Sign(r *x509.CertificateRequest, t pki.Terms, now time.Time) ([]byte, error)
}

// Deps are what the controller needs beside the API.
type Deps struct {
	Signer Signer
	// Lifetime is the longest of a certificate; a request may want less.
	Lifetime time.Duration
	// Reserved tells names and addresses that only one Node may have in a serving
	// certificate, or none ("").
	Reserved func(san string) (owner string, reserved bool)
}

type reconciler struct {
	Deps
	log      *slog.Logger
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
}

// New builds the controller; its keys are names of requests.
func New(env controller.Env, deps Deps) (*controller.Loop, error) {
	requests := env.Informers.Certificates().V1().CertificateSigningRequests()
	loop := controller.New("certificate", 2, env.Log)
	r := &reconciler{Deps: deps, log: env.Log, client: env.Client, requests: requests.Lister()}
	loop.Reconciler = r
	loop.WatchKeys(requests.Informer())
	r.watchNodes(loop, env)
	return loop, nil
}

// Reconcile takes one request a step on, and comes back when it is to go.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	request, err := r.requests.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if at := end(request); !at.IsZero() {
		left := time.Until(at)
		if left <= 0 {
			return 0, r.remove(ctx, request)
		}
		// The rest of its life goes on beside that of the steps.
		if err := r.step(ctx, request.DeepCopy()); err != nil {
			return 0, err
		}
		return left, nil
	}
	return 0, r.step(ctx, request.DeepCopy())
}

func (r *reconciler) remove(ctx context.Context, c *certRequest) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}}
	err := r.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, c.Name, options)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *reconciler) step(ctx context.Context, c *certRequest) error {
	check := signers[c.Spec.SignerName]
	if check == nil || len(c.Status.Certificate) > 0 || has(c, certificatesv1.CertificateDenied) ||
		has(c, certificatesv1.CertificateFailed) {
		return nil
	}
	parsed, err := pki.ParseRequest(c.Spec.Request)
	if err != nil {
		return fmt.Errorf("read request %s: %w", c.Name, err)
	}
	if !has(c, certificatesv1.CertificateApproved) {
		return r.approve(ctx, c, parsed)
	}
	if err := check(parsed, c.Spec.Usages); err != nil {
		return r.fail(ctx, c, err)
	}
	usage, ext, err := translate(c.Spec.Usages)
	if err != nil {
		return fmt.Errorf("sign request %s: %w", c.Name, err)
	}
	terms := pki.Terms{Usage: usage, ExtUsage: ext, Lifetime: lifetime(c.Spec.ExpirationSeconds, r.Lifetime)}
	if c.Status.Certificate, err = r.Signer.Sign(parsed, terms, time.Now()); err != nil {
		return fmt.Errorf("sign request %s: %w", c.Name, err)
	}
	return r.write(ctx, c)
}

func (r *reconciler) write(ctx context.Context, c *certRequest) error {
	_, err := r.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *reconciler) fail(ctx context.Context, c *certRequest, why error) error {
	c.Status.Conditions = append(c.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
		Reason: "SignerValidationFailure", Message: why.Error(), LastUpdateTime: metav1.Now(),
	})
	return r.write(ctx, c)
}

// approve says yes to a node that asks for a certificate of its own.
func (r *reconciler) approve(ctx context.Context, c *certRequest, parsed *x509.CertificateRequest) error {
	if c.Spec.SignerName != servingSigner {
		return r.approveClient(ctx, c, parsed)
	}
	if err := r.ownServing(c, parsed); err != nil {
		r.log.Info("a kubelet's serving certificate waits for an administrator's approval", "request", c.Name,
			"user", c.Spec.Username, "why", err)
		return nil
	}
	return r.sayYes(ctx, c, "Auto approving kubelet serving certificate of the node's own names and addresses.")
}

// approveClient says yes to a client certificate if the node is allowed to ask:
// "selfnodeclient" to renew, "nodeclient" for the first.
func (r *reconciler) approveClient(ctx context.Context, c *certRequest, parsed *x509.CertificateRequest) error {
	if c.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
		checkNodeClient(parsed, c.Spec.Usages) != nil {
		return nil
	}
	for _, way := range []struct{ subresource, message string }{
		{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."},
		{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."},
	} {
		if way.subresource == "selfnodeclient" && c.Spec.Username != parsed.Subject.CommonName {
			continue
		}
		allowed, err := r.allowed(ctx, c, way.subresource)
		if err != nil {
			return fmt.Errorf("approve request %s: %w", c.Name, err)
		}
		if id := joinToken(c); allowed && id != "" {
			return r.approveJoin(ctx, c, parsed, id)
		}
		if allowed {
			return r.sayYes(ctx, c, way.message)
		}
	}
	return nil
}

func (r *reconciler) sayYes(ctx context.Context, c *certRequest, why string) error {
	c.Status.Conditions = append(c.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: why,
	})
	_, err := r.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, c.Name, c, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *reconciler) allowed(ctx context.Context, c *certRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range c.Spec.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: c.Spec.Username, UID: c.Spec.UID, Groups: c.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group:    certificatesv1.GroupName,
				Resource: "certificatesigningrequests", Verb: "create", Subresource: subresource, Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}
