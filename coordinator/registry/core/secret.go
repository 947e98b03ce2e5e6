package core

import (
	"context"
	"crypto/tls"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func secret() kind.Kind {
	return kind.Of[corev1.Secret]{
		Names: kind.Names{GroupVersion: groupVersion, Resource: "secrets", Singular: "secret", List: &corev1.SecretList{}},
		Default: func(s *corev1.Secret) {
			if s.Type == "" {
				s.Type = corev1.SecretTypeOpaque
			}
			mergeStringData(s)
		},
		Validate: func(_ context.Context, s *corev1.Secret) field.ErrorList { return validateSecret(s) },
		Update: func(_ context.Context, s, old *corev1.Secret) {
			// A secret that was made before types keeps its default one.
			if s.Type == "" {
				s.Type = old.Type
			}
		},
		ValidateUpdate: func(_ context.Context, s, old *corev1.Secret) field.ErrorList {
			errs := immutable(s.Type, old.Type, field.NewPath("type"))
			if deref(old.Immutable) {
				errs = append(errs, frozen(s.Immutable, "data", s.Data, old.Data)...)
			}
			return append(errs, validateSecret(s)...)
		},
		Warnings: func(_ context.Context, s, _ *corev1.Secret) []string {
			if s.Type != corev1.SecretTypeTLS {
				return nil
			}
			if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
				return []string{err.Error()}
			}
			return nil
		},
		Fields: func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"]),
			kind.Column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"]),
			kind.AgeColumn(),
		},
		Row: func(s *corev1.Secret) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), kind.Age(s.CreationTimestamp)}
		},
	}.Kind()
}

// mergeStringData moves stringData, which is write-only, into data.
func mergeStringData(s *corev1.Secret) {
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func validateSecret(s *corev1.Secret) (errs field.ErrorList) {
	data, size := field.NewPath("data"), 0
	for key, value := range s.Data {
		errs = append(errs, fieldrule.Invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	need := func(key string) {
		if _, ok := s.Data[key]; !ok {
			errs = append(errs, field.Required(data.Key(key), ""))
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs,
				field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		errs = append(errs, validateDockerConfig(s, corev1.DockerConfigKey)...)
	case corev1.SecretTypeDockerConfigJson:
		errs = append(errs, validateDockerConfig(s, corev1.DockerConfigJsonKey)...)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey)
			need(corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey)
		need(corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateDockerConfig(s *corev1.Secret, key string) field.ErrorList {
	at := field.NewPath("data").Key(key)
	content, ok := s.Data[key]
	if !ok {
		return field.ErrorList{field.Required(at, "")}
	}
	if err := json.Unmarshal(content, &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(at, "<secret contents redacted>", err.Error())}
	}
	return nil
}
