package encryption

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// File is the path of an EncryptionConfiguration.
type File string

// head is what a file of ours begins with.
const head = `# Keys of what is encrypted in the store: without them Secrets cannot be read.
# Back this file up apart from the store. "shoal secrets rotate" makes new keys.
`

// maxFile is more than any configuration needs.
const maxFile = 1 << 20

// Make writes a configuration with one new key. Secrets are encrypted by
// secretbox (XSalsa20-Poly1305): its nonces of 24 bytes may be random for any
// number of writes, where AES-GCM's of 12 ask for a new key every 200,000
// writes, and it is authenticated, which AES-CBC is not. Values that an earlier
// version wrote in the clear are read by the provider identity, until they are
// rewritten.
func (f File) Make(now time.Time) error {
	key, err := newKey(now)
	if err != nil {
		return err
	}
	c := &apiserverv1.EncryptionConfiguration{Resources: []apiserverv1.ResourceConfiguration{{
		Resources: []string{"secrets"},
		Providers: []apiserverv1.ProviderConfiguration{
			{Secretbox: &apiserverv1.SecretboxConfiguration{Keys: []apiserverv1.Key{key}}},
			{Identity: &apiserverv1.IdentityConfiguration{}},
		},
	}}}
	c.APIVersion, c.Kind = "apiserver.config.k8s.io/v1", "EncryptionConfiguration"
	return f.write(c)
}

func (f File) read() (*apiserverv1.EncryptionConfiguration, error) {
	info, err := os.Stat(string(f))
	if err != nil {
		return nil, fmt.Errorf("read encryption configuration: %w", err)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("read encryption configuration %s: larger than %d bytes", f, maxFile)
	}
	data, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("read encryption configuration: %w", err)
	}
	c := &apiserverv1.EncryptionConfiguration{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, fmt.Errorf("read encryption configuration %s: %w", f, err)
	}
	return c, nil
}

func (f File) write(c *apiserverv1.EncryptionConfiguration) error {
	data, err := f.encode(c)
	if err != nil {
		return err
	}
	return f.replace(data)
}

func (f File) encode(c *apiserverv1.EncryptionConfiguration) ([]byte, error) {
	data, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write encryption configuration %s: %w", f, err)
	}
	return append([]byte(head), data...), nil
}

// replace writes the file. It is on the disk, with its name, before anything is
// encrypted with a key that it alone holds. A link would be replaced by a file
// where the link is, perhaps on the disk that the keys were kept away from.
func (f File) replace(data []byte) error {
	if info, err := os.Lstat(string(f)); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf(
			"write encryption configuration %s: it is no regular file; name the file itself with encryptionProviderConfig",
			f)
	}
	if err := pki.WriteFile(string(f), data, 0o600); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(string(f)))
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("write encryption configuration %s: %w", f, err)
	}
	return nil
}

// Install writes what another coordinator's file has, if that is a configuration.
func (f File) Install(data []byte) error {
	if err := Check(data); err != nil {
		return fmt.Errorf("write %s: the other coordinator's: %w", f, err)
	}
	return f.replace(data)
}

// Check fails unless data is a configuration that the API server takes.
func Check(data []byte) error {
	if len(data) > maxFile {
		return fmt.Errorf("encryption configuration: longer than %d bytes", maxFile)
	}
	if err := yaml.UnmarshalStrict(data, &apiserverv1.EncryptionConfiguration{}); err != nil {
		return fmt.Errorf("encryption configuration: it is none: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("encryption configuration: %w", err)
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	o, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return fmt.Errorf("encryption configuration: it is none: %w", err)
	}
	c, ok := o.(*apiserver.EncryptionConfiguration)
	if !ok {
		return fmt.Errorf("encryption configuration: it is a %T", o)
	}
	if err := validation.ValidateEncryptionConfiguration(c, true).ToAggregate(); err != nil {
		return fmt.Errorf("encryption configuration: %w", err)
	}
	return nil
}

// Hash is what the API server's metrics call the file's content.
func (f File) Hash() (string, error) {
	data, err := os.ReadFile(string(f))
	if err != nil {
		return "", fmt.Errorf("read encryption configuration: %w", err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data)), nil
}

// keyName is the form of our keys' names; its time says which is the newest.
const keyName = "key-20060102T150405Z"

func newKey(now time.Time) (apiserverv1.Key, error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return apiserverv1.Key{}, fmt.Errorf("make encryption key: %w", err)
	}
	return apiserverv1.Key{Name: now.UTC().Format(keyName), Secret: base64.StdEncoding.EncodeToString(secret)}, nil
}

// made is when a key was, zero for keys whose names are not ours.
func made(k apiserverv1.Key) time.Time {
	t, err := time.Parse(keyName, k.Name)
	if err != nil {
		return time.Time{}
	}
	return t
}
