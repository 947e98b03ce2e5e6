package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/agent/jointoken"
	"github.com/shoal-project/shoal/coordinator/joinapi"
)

const (
	// apiName is in the certificate of each coordinator, whatever its address.
	apiName = "kubernetes.default.svc"
	// serverPatience is how long one address may take to answer.
	serverPatience = 10 * time.Second
	// A token that the coordinator does not know is shown again after these pauses, twice
	// as long each time: it may have been made a moment ago.
	firstTokenPause, lastTokenPause = 100 * time.Millisecond, 1600 * time.Millisecond
	// maxSkew is what clocks may differ: a certificate that is made now begins so long
	// before.
	maxSkew = 5 * time.Minute
)

// found is a coordinator of the token's cluster.
type found struct {
	server string // its URL
	ca     []byte // PEM of the cluster's CA
	client *api   // who asks by the token
}

// discover finds the first coordinator of the token that answers and that the CA of
// the token's hash has signed. Nothing secret is sent before that is known.
func discover(ctx context.Context, t jointoken.Token, caFile []byte) (found, error) {
	var errs []error
	servers := slices.Clone(t.Servers)
	// The nodes share the coordinators.
	rand.Shuffle(len(servers), func(a, b int) { servers[a], servers[b] = servers[b], servers[a] })
	for _, address := range servers {
		f, err := discoverAt(ctx, t, address, caFile)
		if err == nil {
			return f, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", address, err))
		var decided *decidedError
		if errors.As(err, &decided) || ctx.Err() != nil { // no other address would say otherwise
			return found{}, err
		}
	}
	return found{}, fmt.Errorf("no coordinator answers at the token's addresses: %w; open the port in firewalls on the way, "+
		"and look whether shoal-coordinator runs there", joinErrors(errs))
}

// joinErrors is several errors in one sentence.
func joinErrors(errs []error) error {
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
	}
	return errors.New(strings.Join(texts, "; "))
}

// decidedError is one that holds for the cluster or this machine, at whatever address.
type decidedError struct{ text string }

func (e *decidedError) Error() string { return e.text }

func decided(format string, args ...any) error { return &decidedError{fmt.Sprintf(format, args...)} }

func discoverAt(ctx context.Context, t jointoken.Token, address string, caFile []byte) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	f := found{server: "https://" + address}
	var err error
	if f.ca, err = fetchCA(ctx, t, address, caFile); err != nil {
		return f, err
	}
	if f.client, err = connectAs(f.server, apiName, identity{ca: f.ca}, f.server); err != nil {
		return f, err
	}
	f.client.token = t.Bearer()
	// Any answer will do: it comes from who has the CA's certificate.
	probe := &api{server: f.server, http: f.client.http}
	err = probe.do(ctx, http.MethodGet, "/version", nil, nil)
	var refused *statusError
	if err == nil || errors.As(err, &refused) {
		return f, nil
	}
	return f, explainTLS(err, time.Now())
}

// fetchCA asks for the CA at an address that nobody has verified; what it says is
// believed by the token's hash alone.
func fetchCA(ctx context.Context, t jointoken.Token, address string, caFile []byte) ([]byte, error) {
	data := caFile
	if data == nil {
		unverified := &tls.Config{InsecureSkipVerify: true} // the hash verifies what is read
		client := &api{server: "https://" + address, http: &http.Client{
			Transport: &http.Transport{TLSClientConfig: unverified, DisableKeepAlives: true,
				TLSHandshakeTimeout: serverPatience / 2},
		}}
		body, err := client.get(ctx, joinapi.CAPath)
		if answered(err, http.StatusUnauthorized, http.StatusForbidden) {
			return nil, decided("the coordinator at %s shows its CA to nobody that it does not know: copy its ca.crt here, and "+
				"give it by --ca-file", address)
		}
		if err != nil {
			return nil, explainDial(err)
		}
		defer body.Close()
		if data, err = io.ReadAll(io.LimitReader(body, maxCA)); err != nil {
			return nil, explainDial(err)
		}
	}
	list := certificates(data)
	if i := slices.IndexFunc(list, isCA(t)); i >= 0 {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: list[i].Raw}), nil
	}
	return nil, decided("%s is of another cluster than the token, or stands between this machine and it: its CA is not the one "+
		"whose hash the token has; make a token on a coordinator of the cluster that is meant", address)
}

// explainDial is why an address does not answer, in few words.
func explainDial(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	var record tls.RecordHeaderError
	var refused *statusError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("nothing listens on the port")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return errors.New("there is no route to it")
	case errors.As(err, &dns):
		return fmt.Errorf("its name is not known (%s)", dns.Err)
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return errors.New("what listens there does not speak TLS")
	case errors.As(err, &refused):
		return fmt.Errorf("what answers there is no coordinator, or one of an older version (%s)",
			http.StatusText(refused.code))
	case strings.Contains(err.Error(), "TLS handshake timeout"): // the library's error has no type
		return errors.New("the port is open, and no TLS handshake ends in time: what listens there hangs, or packets of full " +
			"size get lost on the way (look at the MTU of the links between)")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("no answer in time: the port is closed by a firewall, or the machine is off")
	}
	return err
}

// explainTLS is why a coordinator's certificate does not count.
func explainTLS(err error, now time.Time) error {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(invalid.Cert.NotBefore):
		return decided("this machine's clock is off: it says %s, and the coordinator's certificate begins on %s; set the clock "+
			"(timedatectl set-ntp true) and try again", stamp(now), stamp(invalid.Cert.NotBefore))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return decided("this machine's clock is off, or the coordinator's certificate has expired: the clock says %s, and the "+
			"certificate ended on %s; set the clock (timedatectl set-ntp true), or restart the coordinator", stamp(now),
			stamp(invalid.Cert.NotAfter))
	case errors.As(err, &unknown):
		return decided("the coordinator's certificate is not signed by the cluster's CA: something stands between this machine and it")
	}
	return explainDial(err)
}

// isCA finds the certificate whose hash a token has.
func isCA(t jointoken.Token) func(*x509.Certificate) bool {
	return func(c *x509.Certificate) bool { return bytes.Equal(jointoken.HashCA(c), t.CA) }
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ask has the cluster say whether the machine can join under a name, before anything
// is made.
func (f found) ask(ctx context.Context, t jointoken.Token, name string) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	var answer joinapi.Cluster
	var now time.Time
	var err error
	for pause := firstTokenPause; ; pause *= 2 {
		before := time.Now()
		err = f.client.read(ctx, joinapi.ClusterPath+"?"+url.Values{joinapi.NameParameter: {name}}.Encode(), &answer)
		now = before.Add(time.Since(before) / 2)
		if !answered(err, http.StatusUnauthorized) || t.Expired(now) || pause > lastTokenPause {
			break
		}
		select { // a coordinator hears of a token that another one made in its own time
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	var refused *statusError
	switch {
	case answered(err, http.StatusUnauthorized) && t.Expired(now):
		return fmt.Errorf("the token has expired on %s: make another with `shoal token create`",
			stamp(time.Unix(t.Expires, 0)))
	case answered(err, http.StatusUnauthorized):
		return errors.New("the cluster does not know the token any more: it was used up or deleted; make another with " +
			"`shoal token create`")
	case errors.As(err, &refused):
		return fmt.Errorf("the coordinator at %s refuses the token: %s", f.server, refused.message)
	case err != nil:
		return fmt.Errorf("%s: %w", f.server, explainTLS(err, now))
	}
	if skew := now.Sub(answer.Time); skew > maxSkew || skew < -maxSkew {
		return fmt.Errorf("this machine's clock is off by %s: it says %s, and the cluster %s; set the clock (timedatectl "+
			"set-ntp true) and try again", skew.Abs().Round(time.Second), stamp(now), stamp(answer.Time))
	}
	if answer.Refused != "" {
		return errors.New(answer.Message)
	}
	return nil
}
