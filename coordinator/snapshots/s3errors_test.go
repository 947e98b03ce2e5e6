package snapshots

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a service answers is told in words that name the field and the fix.
func TestReasons(t *testing.T) {
	for code, c := range map[string]struct {
		status int
		want   string
	}{
		"InvalidAccessKeyId":           {403, "snapshotS3CredentialsFile: https://"},
		"SignatureDoesNotMatch":        {403, "snapshotS3CredentialsFile: the secret in"},
		"RequestTimeTooSkewed":         {403, "timedatectl"},
		"NoSuchBucket":                 {404, `snapshotS3Bucket: there is no bucket "backups"`},
		"AccessDenied":                 {403, "may not do it: it needs ListBucket"},
		"AuthorizationHeaderMalformed": {400, "snapshotS3Region: the bucket is not in us-east-1 but in eu-1"},
	} {
		t.Run(code, func(t *testing.T) {
			b := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				fmt.Fprintf(w, `<Error><Code>%s</Code><Message>as it says</Message><Region>eu-1</Region></Error>`, code)
			}))
			_, err := b.List(t.Context(), here)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "as it says") {
				t.Errorf("%v", err)
			}
		})
	}
}

// Nobody there, or somebody else.
func TestNoService(t *testing.T) {
	good := inMemory(t, nil)
	page := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "<!DOCTYPE html><p>Hello</p>")
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for name, c := range map[string]struct {
		change func(*Bucket)
		want   string
	}{
		"closed":      {func(b *Bucket) { b.Endpoint = "https://" + l.Addr().String() }, "snapshotS3Endpoint: https://127.0.0.1:"},
		"plain":       {func(b *Bucket) { b.Endpoint = strings.Replace(plain.URL, "http:", "https:", 1) }, "speaks no TLS"},
		"page":        {func(b *Bucket) { b.Endpoint, b.CAFile = page.Endpoint, page.CAFile }, "not as an S3 service does"},
		"machine_CAs": {func(b *Bucket) { b.CAFile = "" }, "snapshotS3CAFile: no CA of this machine"},
		"other_CA": {func(b *Bucket) {
			file, _, _ := selfSigned(t)
			b.CAFile = file
		}, "snapshotS3CAFile: none of the CAs in"},
		"no_CA":     {func(b *Bucket) { b.CAFile = b.CredentialsFile }, "holds no certificate"},
		"no_file":   {func(b *Bucket) { b.CredentialsFile = "/nowhere" }, "snapshotS3CredentialsFile: open /nowhere"},
		"no_bucket": {func(b *Bucket) { b.Name = "others" }, `snapshotS3Bucket: there is no bucket "others"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := good
			c.change(&b)
			if _, err := b.List(t.Context(), here); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A service that verifies what it is sent refuses wrong keys, and says so.
func TestWrongKeys(t *testing.T) {
	good := gateway(t)
	for name, c := range map[string]struct {
		change func(*Bucket)
		want   string
	}{
		"key":    {func(b *Bucket) { b.CredentialsFile = credentialsFile(t, "OTHER", secret) }, "does not know the key"},
		"secret": {func(b *Bucket) { b.CredentialsFile = credentialsFile(t, accessKey, "other") }, "is not that of its key"},
		"bucket": {func(b *Bucket) { b.Name = "others" }, "snapshotS3Bucket"},
		"region": {func(b *Bucket) { b.Region = "eu-1" }, "snapshotS3Region"},
	} {
		t.Run(name, func(t *testing.T) {
			b := good
			c.change(&b)
			if _, err := b.List(t.Context(), here); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"aws_access_key_id=a\naws_secret_access_key=b":                                           "",
		"# of the backup\n[default]\n aws_access_key_id = a \n\naws_secret_access_key = b=/+=\n": "",
		"aws_access_key_id=a": "needs a line",
		"":                    "needs a line",
		"[a]\naws_access_key_id=a\naws_secret_access_key=b\n[c]":                     "several profiles",
		"credential_process = /bin/sh\naws_access_key_id=a\naws_secret_access_key=b": "line 1 is not",
		"aws_access_key_id=a\nb": "line 2 is not",
		"aws_access_key_id=a\naws_secret_access_key=b\naws_session_token=" + strings.Repeat("x", 70_000): "token too long",
	} {
		_, err := parseCredentials([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("aws_access_key_id=a\naws_secret_access_key=b"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, fine := range map[os.FileMode]bool{
		0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o660: false, 0o601: false,
	} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readCredentials(file); (err == nil) != fine || err != nil && !strings.Contains(err.Error(), "chmod") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := readCredentials(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a directory: %v", err)
	}
}

// Names of objects are others' words: what is taken for a snapshot is of exactly one form.
func FuzzParse(f *testing.F) {
	b := Bucket{Prefix: "p"}
	f.Add("p/" + here + "/scheduled-20261125T010000Z.db")
	f.Add("p/" + here + "/../../manual-20261125T010000Z.keys")
	f.Fuzz(func(t *testing.T, key string) {
		o, ok := b.parse(key)
		if !ok {
			return
		}
		suffix, kind := keys, manual
		if o.db {
			suffix = database
		}
		if o.scheduled {
			kind = scheduled
		}
		if key != "p/"+o.cluster+"/"+kind+o.time.Format(stamp)+suffix || len(o.cluster) != len(here) {
			t.Errorf("%q is taken for %+v", key, o)
		}
	})
}
