package members

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Client talks to coordinators that are there.
type Client struct {
	// Servers are host:port of their APIs, one after the other.
	Servers []string
	// CA is the cluster's certificate in PEM; nothing is sent to who has none of it.
	CA []byte
	// Token is id.secret of a bootstrap token.
	Token string
}

const (
	// apiName is in the certificate of each coordinator, whatever its address.
	apiName = "kubernetes.default.svc"
	// askTime is more than a cluster takes to grow and to agree.
	askTime = time.Minute
	// A token is shown again after these pauses, twice as long each time.
	firstTokenPause, lastTokenPause = 100 * time.Millisecond, 1600 * time.Millisecond
	// maxAnswer bounds what is read of an answer: keys of a cluster are some kilobytes.
	maxAnswer = 1 << 20
)

// Ask asks one coordinator after the other to let this one in.
func (c Client) Ask(ctx context.Context, r Request) (b Bundle, err error) {
	_, secret, ok := strings.Cut(c.Token, ".")
	if !ok {
		return b, errors.New("the token is not of the form ID.SECRET")
	}
	body, err := json.Marshal(r)
	if err != nil {
		return b, err
	}
	var failed []error
	for _, server := range c.Servers {
		sealed, err := c.show(ctx, server, body)
		if err == nil {
			return sealed.Open(secret)
		}
		failed = append(failed, err)
		if said := (refusal{}); errors.As(err, &said) && said.code < http.StatusInternalServerError {
			break // the others would say the same
		}
	}
	return b, errors.Join(failed...)
}

// show asks one, again when that may help.
func (c Client) show(ctx context.Context, server string, body []byte) (s Sealed, err error) {
	for pause := firstTokenPause; ; pause *= 2 {
		s, err = c.post(ctx, server, body)
		if !passes(err) || pause > lastTokenPause {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, err
		case <-time.After(pause):
		}
	}
}

// passes tells whether the same request may be answered in a moment: a coordinator hears of
// a token that was made a moment ago, here or at another one, in its own time, and one
// that stops cuts the connections that it has. To ask twice is to become a member once.
func passes(err error) bool {
	if said := (refusal{}); errors.As(err, &said) {
		return said.code == http.StatusUnauthorized
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)
}

func (c Client) post(ctx context.Context, server string, body []byte) (s Sealed, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+server+Path, bytes.NewReader(body))
	if err != nil {
		return s, err
	}
	r.Header.Set("Authorization", "Bearer "+c.Token)
	r.Header.Set("Content-Type", "application/json")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA)
	t := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    roots,
		ServerName: apiName,
	}}
	defer t.CloseIdleConnections()
	answer, err := (&http.Client{Transport: t}).Do(r)
	if err != nil {
		return s, fmt.Errorf("ask %s: %w", server, err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return s, fmt.Errorf("ask %s: %w", server, err)
	}
	if answer.StatusCode != http.StatusOK {
		return s, explain(server, answer.StatusCode, data)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s answers something else: %w", server, err)
	}
	return s, nil
}

// explain says what a refusal means to who has a token.
func explain(server string, code int, body []byte) error {
	switch code {
	case http.StatusUnauthorized:
		return refuse(code,
			"%s does not know the token: it has expired, was used or deleted; make another with `shoal token create --coordinator` there",
			server)
	case http.StatusNotFound:
		return refuse(code, "%s has no store of its own that others could join (it uses an outside etcd, or is an older version)",
			server)
	}
	text := strings.TrimSpace(string(body))
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		text = status.Message + "; is it a token of `shoal token create --coordinator`?"
	}
	return refuse(code, "%s refuses: %s", server, text)
}
