package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/registry"
)

// credentials are the registry logins of a pod's pull secrets for an image, and the names of
// secrets that cannot be had: the pull may work without them.
func credentials(ctx context.Context, o Objects, p *corev1.Pod, image string) (
	out []credential, missing []string, err error) {
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue // the API takes it
		}
		s, err := o.Secret(ctx, p.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		var auths registry.Auths
		switch s.Type {
		case corev1.SecretTypeDockerConfigJson:
			auths, err = registry.Parse(s.Data[corev1.DockerConfigJsonKey])
		case corev1.SecretTypeDockercfg:
			auths, err = registry.ParseOld(s.Data[corev1.DockerConfigKey])
		}
		if err != nil {
			return nil, missing, fmt.Errorf("image pull secret %s/%s: %w", p.Namespace, ref.Name, err)
		}
		from := record.ImagePullSecret{Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)}
		for _, auth := range auths.For(image) {
			out = append(out, credential{auth: auth, secret: from})
		}
	}
	return out, missing, nil
}

// withNode adds the node's own logins for an image, which are tried last (IMG-29).
func (m *Manager) withNode(ctx context.Context, logins []credential, image string) ([]credential, error) {
	if m.NodeLogins == nil {
		return logins, nil
	}
	list, err := m.NodeLogins(ctx, image)
	for _, auth := range list {
		logins = append(logins, credential{auth: auth, node: true})
	}
	return logins, err
}
