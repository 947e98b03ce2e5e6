package admission

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/auth/podref"
)

const (
	defaultServiceAccount = "default"
	tokenVolumePrefix     = "kube-api-access-"
	tokenMountPath        = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is the lifetime that makes the issuer give a token that old
	// clients can keep for a year (token.ExtendedSeconds).
	tokenSeconds = 60*60 + 7
	// enforceMountableSecrets is the annotation that limits a service account's
	// pods to the secrets it lists.
	enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"
)

// serviceAccount gives pods their service account, its pull secrets and the
// volume with its token (KEP-1205, SEC-31).
type serviceAccount struct {
	*admission.Handler
	client kubernetes.Interface
	lister corelisters.ServiceAccountLister
}

func newServiceAccount() *serviceAccount {
	return &serviceAccount{Handler: admission.NewHandler(admission.Create, admission.Update)}
}

// SetExternalKubeClientSet and the next two implement the initializer's interfaces.
func (s *serviceAccount) SetExternalKubeClientSet(client kubernetes.Interface) { s.client = client }

// SetExternalKubeInformerFactory takes the informer of service accounts.
func (s *serviceAccount) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	s.lister = f.Core().V1().ServiceAccounts().Lister()
	s.SetReadyFunc(f.Core().V1().ServiceAccounts().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (s *serviceAccount) ValidateInitialization() error {
	if s.client == nil || s.lister == nil {
		return fmt.Errorf("no client or informers")
	}
	return nil
}

// Admit fills in a new pod; a mirror pod stays as it is.
func (s *serviceAccount) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || a.GetOperation() != admission.Create || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultServiceAccount
	}
	// The two fields are one to clients.
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	sa, err := s.get(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	if err != nil {
		return forbid(a, "error looking up service account %s/%s: %w", a.GetNamespace(),
			pod.Spec.ServiceAccountName, err)
	}
	if wantsToken(sa, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		for _, ref := range sa.ImagePullSecrets {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: ref.Name})
		}
	}
	return nil
}

// Validate checks what other plugins may have changed.
func (s *serviceAccount) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	ephemeral := a.GetSubresource() == "ephemeralcontainers" && a.GetOperation() == admission.Update
	created := a.GetSubresource() == "" && a.GetOperation() == admission.Create
	if !ok || !ephemeral && !created {
		return nil
	}
	if created && isMirror(pod) {
		return validateMirror(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		return forbid(a, "no service account specified for pod %s/%s", a.GetNamespace(), pod.Name)
	}
	sa, err := s.get(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	if err != nil {
		return forbid(a, "error looking up service account %s/%s: %w", a.GetNamespace(),
			pod.Spec.ServiceAccountName, err)
	}
	if limited, _ := strconv.ParseBool(sa.Annotations[enforceMountableSecrets]); !limited {
		return nil
	}
	if ephemeral {
		err = limitEphemeral(sa, pod)
	} else {
		err = limitSecrets(sa, pod)
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// patience is how long a pod waits for its namespace's default service account,
// which a controller makes some milliseconds after the namespace.
var patience = []time.Duration{
	2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond,
}

func (s *serviceAccount) get(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	sa, err := s.lister.ServiceAccounts(namespace).Get(name)
	if err == nil {
		return sa, nil
	}
	live := func() (*corev1.ServiceAccount, error) {
		return s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	sa, err = live()
	for i := 0; apierrors.IsNotFound(err) && name == defaultServiceAccount && i < len(patience); i++ {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(patience[i]):
		}
		sa, err = live()
	}
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
	}
	return sa, err
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

func validateMirror(a admission.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return forbid(a, "a mirror pod may not reference service accounts")
	}
	secrets := false
	podref.Visit(pod, func(kind podref.Kind, _ string) { secrets = secrets || kind == podref.Secret })
	if secrets {
		return forbid(a, "a mirror pod may not reference secrets")
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				return forbid(a, "a mirror pod may not use ServiceAccountToken volume projections")
			}
		}
	}
	return nil
}

// wantsToken: the pod's wish wins over the account's; the default is yes.
func wantsToken(sa *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if p := pod.Spec.AutomountServiceAccountToken; p != nil {
		return *p
	}
	return ptr.Deref(sa.AutomountServiceAccountToken, true)
}

// mountToken mounts the token in each container that has nothing at its path.
func mountToken(pod *corev1.Pod) {
	volume := ""
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, tokenVolumePrefix) {
			volume = v.Name
			break
		}
	}
	exists := volume != ""
	if !exists {
		volume = names.SimpleNameGenerator.GenerateName(tokenVolumePrefix)
	}
	used := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			used = mountTokenIn(&list[i], volume) || used
		}
	}
	if used && !exists {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: volume, VolumeSource: corev1.VolumeSource{Projected: tokenSource()},
		})
	}
}

func mountTokenIn(c *corev1.Container, volume string) bool {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == tokenMountPath {
			return false
		}
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, ReadOnly: true, MountPath: tokenMountPath})
	return true
}

func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
				ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}
}

// limitSecrets refuses secrets that the service account does not list.
func limitSecrets(sa *corev1.ServiceAccount, pod *corev1.Pod) error {
	allowed := mountable(sa)
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !allowed[v.Secret.SecretName] {
			return fmt.Errorf(
				"volume with secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret",
				v.Secret.SecretName, sa.Name)
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if err := limitEnv(sa, allowed, "init container "+c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if err := limitEnv(sa, allowed, "container "+c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	pull := map[string]bool{}
	for _, ref := range sa.ImagePullSecrets {
		pull[ref.Name] = true
	}
	for i, ref := range pod.Spec.ImagePullSecrets {
		if !pull[ref.Name] {
			return fmt.Errorf(
				"imagePullSecrets[%d].name=\"%s\" is not allowed because service account %s does not reference that imagePullSecret",
				i, ref.Name, sa.Name)
		}
	}
	return nil
}

func limitEphemeral(sa *corev1.ServiceAccount, pod *corev1.Pod) error {
	allowed := mountable(sa)
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		if err := limitEnv(sa, allowed, "ephemeral container "+c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	return nil
}

func mountable(sa *corev1.ServiceAccount) map[string]bool {
	out := map[string]bool{}
	for _, ref := range sa.Secrets {
		out[ref.Name] = true
	}
	return out
}

func limitEnv(sa *corev1.ServiceAccount, allowed map[string]bool, what string, env []corev1.EnvVar,
	from []corev1.EnvFromSource) error {
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !allowed[e.ValueFrom.SecretKeyRef.Name] {
			return fmt.Errorf(
				"%s with envVar %s referencing secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret",
				what, e.Name, e.ValueFrom.SecretKeyRef.Name, sa.Name)
		}
	}
	for _, e := range from {
		if e.SecretRef != nil && !allowed[e.SecretRef.Name] {
			return fmt.Errorf(
				"%s with envFrom referencing secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret",
				what, e.SecretRef.Name, sa.Name)
		}
	}
	return nil
}
