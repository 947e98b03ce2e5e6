package auth

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// trustConfigMap is where aggregated API servers read whom to believe.
const trustConfigMap = "extension-apiserver-authentication"

// Trust is what aggregated API servers must know of this one, in PEM.
type Trust struct {
	ClientCA, FrontProxyCA string
}

// EnsureTrust writes the ConfigMap kube-system/extension-apiserver-authentication.
// Other coordinators' keys in it stay.
func EnsureTrust(ctx context.Context, client kubernetes.Interface, t Trust) error {
	want := map[string]string{
		"client-ca-file":                     t.ClientCA,
		"requestheader-client-ca-file":       t.FrontProxyCA,
		"requestheader-allowed-names":        `["front-proxy-client"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	have, err := configMaps.Get(ctx, trustConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: trustConfigMap, Namespace: metav1.NamespaceSystem}, Data: want,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case err == nil:
		changed := have.DeepCopy()
		if changed.Data == nil {
			changed.Data = map[string]string{}
		}
		maps.Copy(changed.Data, want)
		if !maps.Equal(changed.Data, have.Data) {
			_, err = configMaps.Update(ctx, changed, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("publish trusted CAs: %w", err)
	}
	return nil
}
