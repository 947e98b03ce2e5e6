package snapshots

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
)

// explain says which field of the configuration an error of S3 is about.
func (b Bucket) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if why := b.reason(err); why != "" {
		return fmt.Errorf("%s: %s (%w)", what, why, err)
	}
	return fmt.Errorf("%s: %s: %w", what, b.Endpoint, err)
}

func (b Bucket) reason(err error) string {
	if why := b.unreached(err); why != "" {
		return why
	}
	said := minio.ErrorResponse{}
	if !errors.As(err, &said) {
		return ""
	}
	switch said.Code {
	case minio.InvalidAccessKeyID, "XAdminUserNotFound", "XAdminNoSuchUser", "InvalidToken", "ExpiredToken":
		return fmt.Sprintf("snapshotS3CredentialsFile: %s does not know the key in %s, or no more",
			b.Endpoint, b.CredentialsFile)
	case minio.SignatureDoesNotMatch:
		return fmt.Sprintf("snapshotS3CredentialsFile: the secret in %s is not that of its key", b.CredentialsFile)
	case minio.RequestTimeTooSkewed, "RequestExpired":
		return fmt.Sprintf("the clock of this machine and that of %s differ too much: set this one's (timedatectl)",
			b.Endpoint)
	case minio.NoSuchBucket:
		return fmt.Sprintf("snapshotS3Bucket: there is no bucket %q at %s: make it there", b.Name, b.Endpoint)
	case minio.AccessDenied:
		return fmt.Sprintf("the key in %s may not do it: it needs ListBucket, ListBucketMultipartUploads, GetObject, PutObject, DeleteObject and AbortMultipartUpload for %s/%s",
			b.CredentialsFile, b.Name, b.Prefix)
	case minio.InvalidRegion, "AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException":
		region := said.Region
		if region == "" {
			region = "another one"
		}
		return fmt.Sprintf("snapshotS3Region: the bucket is not in %s but in %s", b.Region, region)
	case minio.NoSuchKey:
		return "it is not there: `shoal snapshot list` shows those that are"
	}
	if said.Code == "" || strings.HasPrefix(said.Code, strconv.Itoa(said.StatusCode)) { // the library's own code
		return fmt.Sprintf("snapshotS3Endpoint: %s answers %d, and not as an S3 service does",
			b.Endpoint, said.StatusCode)
	}
	return ""
}

// unreached is why nobody was spoken to who could have answered.
func (b Bucket) unreached(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var operation *net.OpError
	switch {
	case errors.As(err, &unknown) && b.CAFile == "":
		return fmt.Sprintf("snapshotS3CAFile: no CA of this machine has signed the certificate of %s: name the file of the one that has",
			b.Endpoint)
	case errors.As(err, &unknown):
		return fmt.Sprintf("snapshotS3CAFile: none of the CAs in %s has signed the certificate of %s",
			b.CAFile, b.Endpoint)
	case errors.As(err, &name):
		return fmt.Sprintf("snapshotS3Endpoint: the certificate of %s is for another name", b.Endpoint)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the certificate of %s is not valid at this time: is this machine's clock right?",
			b.Endpoint)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Sprintf("snapshotS3Endpoint: %s speaks no TLS", b.Endpoint)
	case errors.As(err, &operation):
		return fmt.Sprintf("snapshotS3Endpoint: %s is not reached", b.Endpoint)
	}
	return ""
}
