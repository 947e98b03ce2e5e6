package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// credentials are the registry logins of a pod's pull secrets for an image.
func credentials(ctx context.Context, o Objects, p *corev1.Pod, image string) ([]credential, error) {
	var out []credential
	for _, ref := range p.Spec.ImagePullSecrets {
		s, err := o.Secret(ctx, p.Namespace, ref.Name)
		if err != nil {
			continue // as upstream: the pull may work without it
		}
		var cfg struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		switch s.Type {
		case corev1.SecretTypeDockerConfigJson:
			err = json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &cfg)
		case corev1.SecretTypeDockercfg:
			err = json.Unmarshal(s.Data[corev1.DockerConfigKey], &cfg.Auths)
		}
		if err != nil {
			return nil, fmt.Errorf("image pull secret %s/%s: %w", p.Namespace, ref.Name, err)
		}
		from := record.ImagePullSecret{Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)}
		for _, server := range slices.Backward(slices.Sorted(maps.Keys(cfg.Auths))) { // the more exact first
			if registryMatches(server, image) {
				out = append(out, credential{auth: cfg.Auths[server].config(server), secret: from})
			}
		}
	}
	return out, nil
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

func (a dockerAuth) config(server string) *criv1.AuthConfig {
	return &criv1.AuthConfig{Username: a.Username, Password: a.Password, Auth: a.Auth,
		IdentityToken: a.IdentityToken, ServerAddress: server}
}

// registryMatches tells whether a key of a docker configuration is for the
// image: its registry, with an optional scheme, a glob in the host's parts
// and a path prefix.
func registryMatches(key, image string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, path, _ := strings.Cut(key, "/")
	imageHost, imagePath, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(imageHost, ".:") && imageHost != "localhost" {
		imageHost, imagePath = "docker.io", image
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	if host != imageHost {
		ok, err := filepath.Match(host, imageHost)
		if err != nil || !ok || strings.Count(host, ".") != strings.Count(imageHost, ".") {
			return false
		}
	}
	path = strings.Trim(path, "/")
	if path == "" || path == "v1" || path == "v2" {
		return true
	}
	return strings.HasPrefix(imagePath, path)
}
