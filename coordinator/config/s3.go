package config

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// S3 is where copies of the snapshots go, beside their directory.
type S3 struct {
	// SnapshotS3Endpoint is the service's URL; empty: nothing goes anywhere.
	SnapshotS3Endpoint string `json:"snapshotS3Endpoint,omitempty"`
	// SnapshotS3Bucket has them, below SnapshotS3Prefix.
	SnapshotS3Bucket string `json:"snapshotS3Bucket,omitempty"`
	SnapshotS3Prefix string `json:"snapshotS3Prefix,omitempty"`
	SnapshotS3Region string `json:"snapshotS3Region,omitempty"`
	// SnapshotS3CredentialsFile has aws_access_key_id and aws_secret_access_key, as the
	// AWS command line's.
	SnapshotS3CredentialsFile string `json:"snapshotS3CredentialsFile,omitempty"`
	// SnapshotS3CAFile are the CAs that may have signed the endpoint's certificate; empty:
	// those that the machine trusts.
	SnapshotS3CAFile string `json:"snapshotS3CAFile,omitempty"`
	// SnapshotS3Keep is how many of the schedule stay there.
	SnapshotS3Keep int `json:"snapshotS3Keep,omitempty"`
}

func defaultS3() S3 {
	return S3{SnapshotS3Prefix: "shoal", SnapshotS3Region: "us-east-1", SnapshotS3Keep: 14}
}

func (s *S3) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.SnapshotS3Endpoint, "snapshot-s3-endpoint", s.SnapshotS3Endpoint,
		"URL of an S3 service that snapshots are copied to, https://HOST[:PORT] (default: none)")
	fs.StringVar(&s.SnapshotS3Bucket, "snapshot-s3-bucket", s.SnapshotS3Bucket, "bucket of copied snapshots")
	fs.StringVar(&s.SnapshotS3Prefix, "snapshot-s3-prefix", s.SnapshotS3Prefix,
		"what names of copied snapshots begin with; clusters may share one")
	fs.StringVar(&s.SnapshotS3Region, "snapshot-s3-region", s.SnapshotS3Region, "region of the bucket")
	fs.StringVar(&s.SnapshotS3CredentialsFile, "snapshot-s3-credentials-file", s.SnapshotS3CredentialsFile,
		"file with aws_access_key_id and aws_secret_access_key, which nobody else may read")
	fs.StringVar(&s.SnapshotS3CAFile, "snapshot-s3-cafile", s.SnapshotS3CAFile,
		"CAs of the S3 service (default: those that the machine trusts)")
	fs.IntVar(&s.SnapshotS3Keep, "snapshot-s3-keep", s.SnapshotS3Keep,
		"how many copied snapshots of the schedule are kept")
}

func (s S3) validate(bad func(field, value, remedy string)) {
	if s.SnapshotS3Endpoint == "" {
		if s.SnapshotS3Bucket != "" {
			bad("snapshotS3Bucket", s.SnapshotS3Bucket, "name the service too, with snapshotS3Endpoint")
		}
		return
	}
	u, err := url.Parse(s.SnapshotS3Endpoint)
	switch {
	case err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" ||
		u.Scheme != "https" && u.Scheme != "http":
		bad("snapshotS3Endpoint", s.SnapshotS3Endpoint, "give https://HOST or https://HOST:PORT")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		bad("snapshotS3Endpoint", s.SnapshotS3Endpoint,
			"give https://…: a snapshot holds the cluster's state, and who changes one on its way changes what is restored")
	}
	if s.SnapshotS3Bucket == "" || strings.ContainsAny(s.SnapshotS3Bucket, "/ ") {
		bad("snapshotS3Bucket", s.SnapshotS3Bucket, "give the name of a bucket")
	}
	if p := s.SnapshotS3Prefix; p == "" || strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") ||
		strings.Contains(p, "//") {
		bad("snapshotS3Prefix", p, "give a name such as shoal or backups/shoal")
	}
	for field, path := range map[string]string{
		"snapshotS3CredentialsFile": s.SnapshotS3CredentialsFile, "snapshotS3CAFile": s.SnapshotS3CAFile,
	} {
		if !strings.HasPrefix(path, "/") && (path != "" || field == "snapshotS3CredentialsFile") {
			bad(field, path, "give an absolute path")
		}
	}
	if s.SnapshotS3Keep < 1 {
		bad("snapshotS3Keep", strconv.Itoa(s.SnapshotS3Keep), "give 1 or more")
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
