package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const (
	// imagePolicyPrefix begins the keys of what is noted in the audit log.
	imagePolicyPrefix = "imagepolicywebhook.image-policy.k8s.io/"
	// failedOpenAnnotation tells on a pod that nobody was asked about its images.
	failedOpenAnnotation = "alpha.image-policy.k8s.io/failed-open"
	// imageReviews are remembered, as many as upstream does.
	imageReviews = 1024
)

// imagePolicyConfig is the plugin's configuration, with upstream's units.
type imagePolicyConfig struct {
	KubeConfigFile string `json:"kubeConfigFile"`
	// AllowTTL and DenyTTL are seconds, RetryBackoff milliseconds: -1 means none,
	// 0 the default.
	AllowTTL     int64 `json:"allowTTL"`
	DenyTTL      int64 `json:"denyTTL"`
	RetryBackoff int64 `json:"retryBackoff"`
	DefaultAllow bool  `json:"defaultAllow"`
}

// imagePolicy asks a service whether a pod's images may run (EXT-10).
type imagePolicy struct {
	*admission.Handler
	webhook           *webhook.GenericWebhook
	answers           *cache.LRUExpireCache
	allowTTL, denyTTL time.Duration
	defaultAllow      bool
}

func newImagePolicy(config io.Reader) (admission.Interface, error) {
	if config == nil {
		return nil, errors.New("it needs a configuration with imagePolicy.kubeConfigFile in admissionControlConfigFile")
	}
	data, err := io.ReadAll(config)
	if err != nil {
		return nil, err
	}
	var c struct {
		ImagePolicy imagePolicyConfig `json:"imagePolicy"`
	}
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, err
	}
	return c.ImagePolicy.build()
}

func (c imagePolicyConfig) build() (admission.Interface, error) {
	p := &imagePolicy{Handler: admission.NewHandler(admission.Create, admission.Update),
		answers: cache.NewLRUExpireCache(imageReviews), defaultAllow: c.DefaultAllow}
	var errs [3]error
	var backoff time.Duration
	p.allowTTL, errs[0] = bounded("allowTTL", c.AllowTTL, time.Second, 5*time.Minute, 30*time.Minute)
	p.denyTTL, errs[1] = bounded("denyTTL", c.DenyTTL, time.Second, 30*time.Second, 30*time.Minute)
	backoff, errs[2] = bounded("retryBackoff", c.RetryBackoff, time.Millisecond, 500*time.Millisecond, 5*time.Minute)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := imagepolicyv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	client, err := webhook.LoadKubeconfig(c.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("imagePolicy.kubeConfigFile %q: %w", c.KubeConfigFile, err)
	}
	p.webhook, err = webhook.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), client,
		[]schema.GroupVersion{imagepolicyv1alpha1.SchemeGroupVersion},
		webhook.DefaultRetryBackoffWithInitialDelay(backoff))
	if err != nil {
		return nil, fmt.Errorf("imagePolicy.kubeConfigFile %q: %w", c.KubeConfigFile, err)
	}
	return p, nil
}

// bounded is n units: at least one, at most most; 0 means usual, -1 none.
func bounded(name string, n int64, unit, usual, most time.Duration) (time.Duration, error) {
	switch d := time.Duration(n) * unit; {
	case n == 0:
		return usual, nil
	case n == -1:
		return 0, nil
	case n < 0 || d > most:
		return 0, fmt.Errorf("imagePolicy.%s %d: give -1 for none, 0 for the default, or up to %d", name, n, most/unit)
	default:
		return d, nil
	}
}

// Validate asks about the images of a pod, or about its ephemeral containers'.
func (p *imagePolicy) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, _ := podAndOld(a)
	if pod == nil {
		return nil
	}
	review := &imagepolicyv1alpha1.ImageReview{Spec: imagepolicyv1alpha1.ImageReviewSpec{
		Containers: reviewedImages(pod, a.GetSubresource()), Annotations: reviewedAnnotations(pod.Annotations),
		Namespace: a.GetNamespace(),
	}}
	if err := p.ask(ctx, review); err != nil {
		return p.unanswered(pod, a, err)
	}
	for k, v := range review.Status.AuditAnnotations {
		// The error is of a key that is no name: the service's fault, not the pod's.
		_ = a.AddAnnotation(imagePolicyPrefix+k, v)
	}
	switch {
	case review.Status.Allowed:
		return nil
	case review.Status.Reason != "":
		return forbid(a, "image policy webhook backend denied one or more images: %s", review.Status.Reason)
	default:
		return forbid(a, "one or more images rejected by webhook backend")
	}
}

// ask fills in the review's status, from memory where it can.
func (p *imagePolicy) ask(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error {
	key, err := json.Marshal(review.Spec)
	if err != nil {
		return err
	}
	if known, ok := p.answers.Get(string(key)); ok {
		review.Status = known.(imagepolicyv1alpha1.ImageReviewStatus)
		return nil
	}
	result := p.webhook.WithExponentialBackoff(ctx, func() rest.Result {
		return p.webhook.RestClient.Post().Body(review).Do(ctx)
	})
	if err := result.Error(); err != nil {
		return err
	}
	var code int
	if result.StatusCode(&code); code < 200 || code >= 300 {
		return fmt.Errorf("error contacting webhook: %d", code)
	}
	if err := result.Into(review); err != nil {
		return err
	}
	ttl := p.denyTTL
	if review.Status.Allowed {
		ttl = p.allowTTL
	}
	p.answers.Add(string(key), review.Status, ttl)
	return nil
}

// unanswered refuses the pod, or lets it pass with a note that it did.
func (p *imagePolicy) unanswered(pod *corev1.Pod, a admission.Attributes, err error) error {
	if !p.defaultAllow {
		return admission.NewForbidden(a, err)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[failedOpenAnnotation] = "true"
	return a.AddAnnotation(imagePolicyPrefix+"failed-open", "true")
}

func reviewedImages(pod *corev1.Pod, subresource string) []imagepolicyv1alpha1.ImageReviewContainerSpec {
	var out []imagepolicyv1alpha1.ImageReviewContainerSpec
	if subresource == "ephemeralcontainers" {
		for _, c := range pod.Spec.EphemeralContainers {
			out = append(out, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: c.Image})
		}
		return out
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			out = append(out, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: c.Image})
		}
	}
	return out
}

// reviewedAnnotations are those meant for the service.
func reviewedAnnotations(all map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range all {
		if strings.Contains(k, ".image-policy.k8s.io/") {
			out[k] = v
		}
	}
	return out
}
