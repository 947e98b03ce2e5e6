package jointoken

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Role is what a machine becomes.
type Role string

// What a machine may become: one that runs pods, one of the cluster's coordinators, or
// one that votes in their store.
const (
	RoleNode        Role = "node"
	RoleCoordinator Role = "coordinator"
	RoleWitness     Role = "witness"
)

// Token is what the text says.
type Token struct {
	Role Role `json:"r"`
	// Servers are host:port of the API of each coordinator, at most MaxServers.
	Servers []string `json:"s"`
	// CA is HashCA of the cluster's.
	CA []byte `json:"c"`
	// ID and Secret are the bootstrap token's.
	ID     string `json:"i"`
	Secret string `json:"k"`
	// Expires is when it ends, in seconds since 1970; 0: never.
	Expires int64 `json:"e,omitempty"`
}

// Limits of a token.
const (
	MaxServers = 16
	maxText    = 8 << 10
	maxHost    = 253
	sumLength  = 4
)

const (
	family = "shoal"
	prefix = family + "1."
)

var (
	idForm     = regexp.MustCompile(`^[a-z0-9]{6}$`)
	secretForm = regexp.MustCompile(`^[a-z0-9]{16}$`)
	hostForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
)

// encoding refuses bits that count for nothing, so that a token has one text.
var encoding = base64.RawURLEncoding.Strict()

// HashCA is the SHA-256 of the public key of a CA's certificate, with its algorithm
// (SubjectPublicKeyInfo): it stays when the certificate is made anew for the key.
func HashCA(ca *x509.Certificate) []byte {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return sum[:]
}

// Bearer is the bootstrap token as a request shows it.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// Expired tells whether it has ended at now.
func (t Token) Expired(now time.Time) bool { return t.Expires != 0 && now.Unix() >= t.Expires }

// Encode returns the text.
func (t Token) Encode() (string, error) {
	if err := t.validate(); err != nil {
		return "", err
	}
	data, err := json.Marshal(t)
	if err != nil {
		return "", err
	}
	text := prefix + encoding.EncodeToString(append(data, sum(data)...))
	if len(text) > maxText {
		return "", fmt.Errorf("the token is longer than %d characters", maxText)
	}
	return text, nil
}

func sum(data []byte) []byte {
	s := sha256.Sum256(data)
	return s[:sumLength]
}

// errDamaged has the remedy for a text that was not copied as a whole.
var errDamaged = errors.New("it is cut off or mistyped; copy the whole line that `shoal token create` has printed")

// Decode reads the text; white space around it counts for nothing.
func Decode(text string) (Token, error) {
	var t Token
	text = strings.TrimSpace(text)
	if len(text) > maxText {
		return t, fmt.Errorf("join token: it is longer than %d characters", maxText)
	}
	body, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return t, notOurs(text)
	}
	raw, err := encoding.DecodeString(body)
	if err != nil || len(raw) < sumLength {
		return t, fmt.Errorf("join token: %w", errDamaged)
	}
	data, want := raw[:len(raw)-sumLength], raw[len(raw)-sumLength:]
	if !bytes.Equal(sum(data), want) {
		return t, fmt.Errorf("join token: %w", errDamaged)
	}
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err := in.Decode(&t); err != nil {
		return Token{}, fmt.Errorf("join token: it says what this version does not know (%w); "+
			"install the version that made it", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return Token{}, fmt.Errorf("join token: %w", errDamaged)
	}
	if err := t.validate(); err != nil {
		return Token{}, fmt.Errorf("join token: %w", err)
	}
	return t, nil
}

// notOurs says what a text without the prefix may be.
func notOurs(text string) error {
	number, _, found := strings.Cut(strings.TrimPrefix(text, family), ".")
	if n, err := strconv.Atoi(number); err == nil && found && strings.HasPrefix(text, family) {
		return fmt.Errorf("join token: it is of form %d, and this version reads form 1; "+
			"install the version that made it", n)
	}
	return fmt.Errorf("join token: it does not begin with %q; make one with `shoal token create` on a coordinator's machine",
		prefix)
}

func (t Token) validate() error {
	switch {
	case t.Role != RoleNode && t.Role != RoleCoordinator && t.Role != RoleWitness:
		return fmt.Errorf("it is for the role %.40q, and this version knows %q, %q and %q; install the version that made it",
			string(t.Role), RoleNode, RoleCoordinator, RoleWitness)
	case len(t.Servers) == 0 || len(t.Servers) > MaxServers:
		return fmt.Errorf("it has %d addresses, not 1 to %d", len(t.Servers), MaxServers)
	case len(t.CA) != sha256.Size:
		return fmt.Errorf("the CA's hash has %d bytes, not %d", len(t.CA), sha256.Size)
	case !idForm.MatchString(t.ID):
		return errors.New("its identity is not six of a-z and 0-9")
	case !secretForm.MatchString(t.Secret):
		return errors.New("its secret is not sixteen of a-z and 0-9")
	case t.Expires < 0:
		return errors.New("its end is before 1970")
	}
	for _, s := range t.Servers {
		if err := checkServer(s); err != nil {
			return err
		}
	}
	return nil
}

func checkServer(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || len(host) > maxHost || net.ParseIP(host) == nil && !hostForm.MatchString(host) {
		return fmt.Errorf("address %.80q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %.80q has no port from 1 to 65535", s)
	}
	return nil
}
