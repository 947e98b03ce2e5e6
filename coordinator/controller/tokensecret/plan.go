package tokensecret

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// isToken tells whether a Secret is one that this controller looks after.
func isToken(s *corev1.Secret) bool { return s.Type == corev1.SecretTypeServiceAccountToken }

// owner is the account that a Secret names; uid is empty where the Secret does
// not tell it.
func owner(s *corev1.Secret) (name string, uid types.UID) {
	return s.Annotations[corev1.ServiceAccountNameKey], types.UID(s.Annotations[corev1.ServiceAccountUIDKey])
}

// isOf tells whether an account is the one that a Secret names.
func isOf(s *corev1.Secret, sa *corev1.ServiceAccount) bool {
	name, uid := owner(s)
	return name == sa.Name && (uid == "" || uid == sa.UID)
}

// lacks tells what a Secret has not got yet; a CA that is another is missing too.
func lacks(s *corev1.Secret, ca []byte) (lacksCA, lacksNamespace, lacksToken bool) {
	return len(ca) > 0 && !bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], ca),
		len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0,
		len(s.Data[corev1.ServiceAccountTokenKey]) == 0
}

// complete tells whether nothing is missing.
func complete(s *corev1.Secret, ca []byte) bool {
	lacksCA, lacksNamespace, lacksToken := lacks(s, ca)
	return !lacksCA && !lacksNamespace && !lacksToken
}

// fill returns the Secret with all that it lacks; token makes one.
func fill(
	s *corev1.Secret, sa *corev1.ServiceAccount, ca []byte,
	token func(*corev1.ServiceAccount, *corev1.Secret) (string, error),
) (*corev1.Secret, error) {
	out := s.DeepCopy()
	if out.Data == nil {
		out.Data = map[string][]byte{}
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	lacksCA, lacksNamespace, lacksToken := lacks(s, ca)
	if lacksCA {
		out.Data[corev1.ServiceAccountRootCAKey] = ca
	}
	if lacksNamespace {
		out.Data[corev1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	if lacksToken {
		signed, err := token(sa, s)
		if err != nil {
			return nil, err
		}
		out.Data[corev1.ServiceAccountTokenKey] = []byte(signed)
	}
	out.Annotations[corev1.ServiceAccountNameKey] = sa.Name
	out.Annotations[corev1.ServiceAccountUIDKey] = string(sa.UID)
	return out, nil
}

// without is an account's list of Secrets less one name.
func without(refs []corev1.ObjectReference, name string) []corev1.ObjectReference {
	out := make([]corev1.ObjectReference, 0, len(refs))
	for _, ref := range refs {
		if ref.Name != name {
			out = append(out, ref)
		}
	}
	return out
}
