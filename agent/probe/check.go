package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilexec "k8s.io/utils/exec"
)

const (
	userAgent = "kube-probe/1.36"
	maxBody   = 10 << 10
)

// probe asks once. The output says why an answer is not good, or what to warn of
// in a good one; the error is for what could not be asked at all.
func (m *Manager) probe(ctx context.Context, w *watch) (good bool, output string, err error) {
	timeout := seconds(w.spec.TimeoutSeconds, 1)
	switch {
	case w.spec.Exec != nil:
		return m.exec(ctx, w, timeout)
	case w.spec.HTTPGet != nil:
		return httpGet(ctx, w, timeout)
	case w.spec.TCPSocket != nil:
		return tcp(ctx, w, timeout)
	case w.spec.GRPC != nil:
		return grpcCheck(ctx, w, timeout)
	}
	return false, "", errors.New("missing probe handler")
}

func (m *Manager) exec(ctx context.Context, w *watch, timeout time.Duration) (bool, string, error) {
	stdout, stderr, err := m.Exec.ExecSync(ctx, w.t.ID, w.spec.Exec.Command, timeout)
	out := string(stdout) + string(stderr)
	if len(out) > maxBody {
		out = out[:maxBody]
	}
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return true, "", nil
	case errors.As(err, &exit):
		return false, out, nil
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return false, fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(w.spec.Exec.Command, " "),
			timeout), nil
	}
	return false, "", err
}

func (w *watch) host() string {
	if len(w.t.IPs) == 0 {
		return ""
	}
	return w.t.IPs[0]
}

// Port resolves a number or the name of one of the container's ports.
func Port(c *corev1.Container, p intstr.IntOrString) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		n = 0
		for _, port := range c.Ports {
			if port.Name == p.StrVal {
				n = int(port.ContainerPort)
			}
		}
		if n == 0 {
			if v, err := strconv.Atoi(p.StrVal); err == nil {
				n = v
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", p.String())
	}
	return n, nil
}

func httpGet(ctx context.Context, w *watch, timeout time.Duration) (bool, string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := request(ctx, w.t.Container, w.spec.HTTPGet, w.host(), "kube-probe/1.36")
	if err != nil {
		return false, "", err
	}
	resp, err := client(req.URL.Hostname()).Do(req)
	if err != nil {
		return false, err.Error(), nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return false, err.Error(), nil
	}
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400: // to another host
		return true, "Probe terminated redirects, Response body: " + string(body), nil
	case code >= 200 && code < 300:
		return true, "", nil
	}
	return false, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode), nil
}

// Get makes the request of a lifecycle hook (httpGet). As upstream's, any
// answer is good, and a server that answers HTTP to HTTPS is asked so: then its
// address is returned.
func Get(ctx context.Context, c *corev1.Container, h *corev1.HTTPGetAction, ip string) (plain string, err error) {
	req, err := request(ctx, c, h, ip, "kube-lifecycle/1.36")
	if err != nil {
		return "", err
	}
	cl := client(req.URL.Hostname())
	resp, err := cl.Do(req)
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		req.URL.Scheme, plain = "http", req.URL.Host
		req.Header.Del("Authorization")
		resp, err = cl.Do(req)
	}
	if err != nil {
		return "", err
	}
	return plain, resp.Body.Close()
}

// request has the headers that its author gave; agent is the User-Agent where that is none
// of them.
func request(ctx context.Context, c *corev1.Container, h *corev1.HTTPGetAction, ip, agent string) (*http.Request, error) {
	port, err := Port(c, h.Port)
	if err != nil {
		return nil, err
	}
	host := h.Host
	if host == "" {
		host = ip
	}
	u, err := url.Parse(h.Path)
	if err != nil {
		u = &url.URL{Path: h.Path}
	}
	u.Scheme = "http"
	if h.Scheme == corev1.URISchemeHTTPS {
		u.Scheme = "https"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, kv := range h.HTTPHeaders {
		if strings.EqualFold(kv.Name, "host") {
			req.Host = kv.Value
			continue
		}
		req.Header.Add(kv.Name, kv.Value)
	}
	if _, given := req.Header["User-Agent"]; !given {
		req.Header.Set("User-Agent", agent)
	}
	if _, given := req.Header["Accept"]; !given {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept") // none is wanted
	}
	return req, nil
}

// client follows redirects only within a host: another host's health is not
// the container's.
func client(host string) *http.Client {
	return &http.Client{Transport: once{}, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if req.URL.Hostname() != host {
			return http.ErrUseLastResponse
		}
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
}

func tcp(ctx context.Context, w *watch, timeout time.Duration) (bool, string, error) {
	port, err := Port(w.t.Container, w.spec.TCPSocket.Port)
	if err != nil {
		return false, "", err
	}
	host := w.spec.TCPSocket.Host
	if host == "" {
		host = w.host()
	}
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false, err.Error(), nil
	}
	conn.Close()
	return true, "", nil
}

// grpcCheck asks grpc.health.v1.Health/Check.
func grpcCheck(ctx context.Context, w *watch, timeout time.Duration) (bool, string, error) {
	service := ""
	if w.spec.GRPC.Service != nil {
		service = *w.spec.GRPC.Service
	}
	addr := net.JoinHostPort(w.host(), strconv.Itoa(int(w.spec.GRPC.Port)))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithUserAgent(userAgent),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false, "", err
	}
	defer conn.Close()
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		switch status.Code(err) {
		case codes.Unimplemented:
			return false,
				fmt.Sprintf(
					"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", err),
				nil
		case codes.DeadlineExceeded, codes.Unavailable:
			return false, fmt.Sprintf("timeout: failed to connect service %q within %v: %v", addr, timeout, err), nil
		}
		return false, fmt.Sprintf("error: health rpc probe failed: %+v", err), nil
	}
	if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return false, fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus()), nil
	}
	return true, "", nil
}
