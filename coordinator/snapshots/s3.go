package snapshots

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Bucket has copies of snapshots, of one cluster or of several, in an S3 service. Names
// in it are
//
//	PREFIX/CLUSTER/scheduled-20261125T034000Z.db
//	PREFIX/CLUSTER/scheduled-20261125T034000Z.keys
//
// with the UID of the cluster's namespace kube-system. Other objects are nobody's here:
// they are neither listed nor deleted.
//
// A copy appears at once and as a whole, as objects in S3 do. The keys are sent first:
// where the database is, they are.
type Bucket struct {
	// Endpoint is the service's URL, Name that of the bucket.
	Endpoint, Name, Prefix, Region string
	// CredentialsFile and CAFile are read for each use. An empty CAFile: the machine's CAs.
	CredentialsFile, CAFile string
}

// Copy is one that is in a bucket.
type Copy struct {
	Snapshot // whose File is of the form s3://BUCKET/NAME
	Cluster  string
}

const (
	scheme = "s3://"
	// maxListed bounds how many objects are looked at: a bucket may have any number that
	// are somebody else's.
	maxListed = 20_000
	// partSize is the most that is sent as one piece.
	partSize = 64 << 20
	// maxAnswer bounds what is read of an answer that is no object; a page of a list has
	// 1000 names of 1 KiB at most, and some words about each.
	maxAnswer = 8 << 20
	// dialTime and answerTime bound how long the service may take to say something.
	dialTime, answerTime = 10 * time.Second, time.Minute
	attempts             = 3
	// abandoned is when parts of a copy that was never finished are deleted.
	abandoned = 24 * time.Hour
)

// ours are the names of snapshots below PREFIX/.
var ours = regexp.MustCompile(`^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/((scheduled|manual)-(\d{8}T\d{6}Z))\.(db|keys)$`)

// object is one of ours.
type object struct {
	key, cluster, base string
	scheduled, db      bool
	time               time.Time
	size               int64
}

// parse tells whether a name is that of a snapshot.
func (b Bucket) parse(key string) (o object, ok bool) {
	rest, ok := strings.CutPrefix(key, b.Prefix+"/")
	if !ok {
		return o, false
	}
	m := ours.FindStringSubmatch(rest)
	if m == nil {
		return o, false
	}
	at, err := time.Parse(stamp, m[4])
	if err != nil {
		return o, false
	}
	return object{
		key: key, cluster: m[1], base: m[2], scheduled: m[3]+"-" == scheduled, db: "."+m[5] == database, time: at,
	}, true
}

// s3 is one use of a bucket. Nothing of it stays afterwards.
type s3 struct {
	*minio.Client
	transport *http.Transport
}

func (b Bucket) open() (*s3, error) {
	u, err := url.Parse(b.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("snapshotS3Endpoint: %w", err)
	}
	id, err := readCredentials(b.CredentialsFile)
	if err != nil {
		return nil, fmt.Errorf("snapshotS3CredentialsFile: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if b.CAFile != "" {
		pem, err := os.ReadFile(b.CAFile)
		if err != nil {
			return nil, fmt.Errorf("snapshotS3CAFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("snapshotS3CAFile: %s holds no certificate", b.CAFile)
		}
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTime}).DialContext,
		TLSHandshakeTimeout:   dialTime,
		ResponseHeaderTimeout: answerTime,
		TLSClientConfig:       config,
		DisableCompression:    true, // an answer is as long as its bytes
	}
	c, err := minio.New(u.Host, &minio.Options{
		Creds:      credentials.NewStaticV4(id.key, id.secret, id.token),
		Secure:     u.Scheme == "https",
		Region:     b.Region,
		Transport:  bounded{t},
		MaxRetries: attempts,
	})
	if err != nil {
		return nil, fmt.Errorf("snapshotS3Endpoint %q: %w", b.Endpoint, err)
	}
	return &s3{c, t}, nil
}

func (s *s3) close() { s.transport.CloseIdleConnections() }

// bounded cuts answers that are not an object's content.
type bounded struct{ *http.Transport }

func (t bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.Transport.RoundTrip(r)
	if err == nil && (r.Method != http.MethodGet || r.URL.RawQuery != "" || answer.StatusCode >= 300) {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxAnswer), answer.Body}
	}
	return answer, err
}

// objects are ours of a cluster, or of all, by their names.
func (b Bucket) objects(ctx context.Context, s *s3, cluster string) (out []object, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	under := b.Prefix + "/"
	if cluster != "" {
		under += cluster + "/"
	}
	seen := 0
	for info := range s.ListObjectsIter(ctx, b.Name, minio.ListObjectsOptions{Prefix: under, Recursive: true}) {
		if info.Err != nil {
			return nil, b.explain("list snapshots", info.Err)
		}
		if seen++; seen > maxListed {
			return nil, fmt.Errorf("list snapshots: bucket %s has more than %d objects below %s: give snapshotS3Prefix a name that nothing else uses",
				b.Name, maxListed, under)
		}
		if o, ok := b.parse(info.Key); ok && (cluster == "" || o.cluster == cluster) {
			o.size = info.Size
			out = append(out, o)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return out, nil
}

// List returns the copies of a cluster's snapshots, or those of all clusters, the oldest
// first.
func (b Bucket) List(ctx context.Context, cluster string) ([]Copy, error) {
	s, err := b.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	objects, err := b.objects(ctx, s, cluster)
	if err != nil {
		return nil, err
	}
	return b.copies(objects), nil
}

func (b Bucket) copies(objects []object) (out []Copy) {
	withKeys := map[string]bool{}
	for _, o := range objects {
		if !o.db {
			withKeys[o.cluster+o.base] = true
		}
	}
	for _, o := range objects {
		if o.db {
			out = append(out, Copy{Cluster: o.cluster, Snapshot: Snapshot{
				File: scheme + b.Name + "/" + o.key, Time: o.time, Size: o.size, Keys: withKeys[o.cluster+o.base],
			}})
		}
	}
	slices.SortFunc(out, func(a, b Copy) int { return a.Time.Compare(b.Time) })
	return out
}

// Upload copies a snapshot, and the keys beside it, and returns its name there.
func (b Bucket) Upload(ctx context.Context, cluster string, from Snapshot) (string, error) {
	to := path.Join(b.Prefix, cluster, filepath.Base(from.File))
	if _, ok := b.parse(to); !ok {
		return "", fmt.Errorf("copy a snapshot to S3: %s of cluster %q has no name of a snapshot", from.File, cluster)
	}
	s, err := b.open()
	if err != nil {
		return "", err
	}
	defer s.close()
	if from.Keys {
		if err := b.put(ctx, s, KeysBeside(from.File), KeysBeside(to)); err != nil {
			return "", err
		}
	}
	return scheme + b.Name + "/" + to, b.put(ctx, s, from.File, to)
}

// KeysBeside names the keys of a snapshot.
func KeysBeside(snapshot string) string { return strings.TrimSuffix(snapshot, database) + keys }

func (b Bucket) put(ctx context.Context, s *s3, file, key string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("copy a snapshot to S3: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("copy a snapshot to S3: %w", err)
	}
	_, err = s.PutObject(ctx, b.Name, key, f, info.Size(), minio.PutObjectOptions{
		ContentType: "application/octet-stream",
		PartSize:    partSize,
		NumThreads:  1, // nothing waits for it, and the store has the line too
	})
	return b.explain("copy a snapshot to S3", err)
}

// Prune deletes what the schedule of a cluster has made, but for so many that are whole,
// and what is left of copies that were never finished.
func (b Bucket) Prune(ctx context.Context, cluster string, keep int, now time.Time) error {
	s, err := b.open()
	if err != nil {
		return err
	}
	defer s.close()
	objects, err := b.objects(ctx, s, cluster)
	if err != nil {
		return err
	}
	for _, o := range superseded(objects, keep) {
		if err := s.RemoveObject(ctx, b.Name, o.key, minio.RemoveObjectOptions{}); err != nil {
			return b.explain("delete an old snapshot", err)
		}
	}
	return b.pruneParts(ctx, s, cluster, now)
}

// superseded are those older than the last of so many whole ones, databases first: keys
// without a database are no snapshot.
func superseded(objects []object, keep int) (out []object) {
	var whole []time.Time
	for _, o := range objects {
		if o.scheduled && o.db {
			whole = append(whole, o.time)
		}
	}
	if len(whole) < keep {
		return nil
	}
	slices.SortFunc(whole, time.Time.Compare)
	oldest := whole[len(whole)-keep]
	for _, o := range objects {
		if o.scheduled && o.time.Before(oldest) {
			out = append(out, o)
		}
	}
	slices.SortStableFunc(out, func(a, b object) int {
		switch {
		case a.db == b.db:
			return 0
		case a.db:
			return -1
		}
		return 1
	})
	return out
}

func (b Bucket) pruneParts(ctx context.Context, s *s3, cluster string, now time.Time) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	seen := 0
	for part := range s.ListIncompleteUploads(ctx, b.Name, path.Join(b.Prefix, cluster)+"/", true) {
		if minio.ToErrorResponse(part.Err).Code == minio.NoSuchUpload { // some services' word for none
			return nil
		}
		if part.Err != nil {
			return b.explain("list unfinished copies", part.Err)
		}
		if seen++; seen > maxListed {
			return nil // the others next time
		}
		if o, ok := b.parse(part.Key); !ok || o.cluster != cluster || now.Sub(part.Initiated) < abandoned {
			continue
		}
		if err := s.RemoveIncompleteUpload(ctx, b.Name, part.Key); err != nil {
			return b.explain("delete an unfinished copy", err)
		}
	}
	return nil
}

// IsS3 tells whether something names a copy in a bucket.
func IsS3(file string) bool { return strings.HasPrefix(file, scheme) }

// maxKeys is more than the keys of any cluster take, sealed.
const maxKeys = 1 << 20

// Download brings a copy, and the keys beside it, into a directory.
func (b Bucket) Download(ctx context.Context, name, dir string) (file string, err error) {
	key, ok := strings.CutPrefix(name, scheme+b.Name+"/")
	if !ok {
		return "", fmt.Errorf("%s is not in the bucket %s (snapshotS3Bucket)", name, b.Name)
	}
	o, ok := b.parse(key)
	if !ok || !o.db {
		return "", fmt.Errorf("%s is no name of a snapshot: `shoal snapshot list` shows them", name)
	}
	s, err := b.open()
	if err != nil {
		return "", err
	}
	defer s.close()
	file = filepath.Join(dir, o.base+database)
	info, err := s.StatObject(ctx, b.Name, key, minio.StatObjectOptions{})
	if err != nil {
		return "", b.explain("fetch "+name, err)
	}
	if info.Size < 0 {
		return "", fmt.Errorf("fetch %s: %s does not say how large it is", name, b.Endpoint)
	}
	if err := hasRoom(dir, info.Size); err != nil {
		return "", fmt.Errorf("fetch %s: %w", name, err)
	}
	if err := b.get(ctx, s, key, file, info.Size); err != nil {
		return "", err
	}
	beside, err := s.StatObject(ctx, b.Name, KeysBeside(key), minio.StatObjectOptions{})
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return file, nil
	}
	if err == nil && beside.Size > maxKeys {
		err = fmt.Errorf("%d bytes are no keys", beside.Size)
	}
	if err != nil {
		return "", b.explain("fetch "+KeysBeside(name), err)
	}
	return file, b.get(ctx, s, KeysBeside(key), KeysBeside(file), beside.Size)
}

func (b Bucket) get(ctx context.Context, s *s3, key, to string, size int64) error {
	from, err := s.GetObject(ctx, b.Name, key, minio.GetObjectOptions{})
	if err != nil {
		return b.explain("fetch "+key, err)
	}
	defer from.Close()
	_, err = write(to, func(w io.Writer) error {
		_, err := io.CopyN(w, from, size)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err != nil {
		return b.explain("fetch "+key, err)
	}
	return nil
}
