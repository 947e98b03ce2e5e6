package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// api is a minimal client: the supervisor stays resident, so it links nothing
// of client-go but a kubeconfig's types.
type api struct {
	server string
	token  string // a bearer's; empty: the client certificate tells who asks
	http   *http.Client
}

// maxAnswer bounds what is read of one answer, but for those that go on for ever.
const maxAnswer = 256 << 20

// statusError is an answer that is no success.
type statusError struct {
	request string
	code    int
	// reason and message are those of an API's Status, or the text of the answer.
	reason, message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.request, http.StatusText(e.code), e.message)
}

// answered tells whether an error is an answer with one of these codes.
func answered(err error, codes ...int) bool {
	var e *statusError
	return errors.As(err, &e) && slices.Contains(codes, e.code)
}

// send makes a request; a body is sent as JSON. The caller closes what is answered.
func (a *api) send(ctx context.Context, method, path, kind string, body any) (io.ReadCloser, error) {
	var data io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		data = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.server+path, data)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		_ = resp.Body.Close()
		return nil, newStatusError(method+" "+path, resp.StatusCode, text)
	}
	return resp.Body, nil
}

func newStatusError(request string, code int, text []byte) error {
	e := &statusError{request: request, code: code, message: strings.TrimSpace(string(text))}
	var status struct{ Reason, Message string }
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		e.reason, e.message = status.Reason, status.Message
	}
	return e
}

func (a *api) get(ctx context.Context, path string) (io.ReadCloser, error) {
	return a.send(ctx, http.MethodGet, path, "", nil)
}

func (a *api) read(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, nil, into)
}

// do makes a request and decodes the answer; into is nil for one of no matter.
func (a *api) do(ctx context.Context, method, path string, body, into any) error {
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	answer, err := a.send(ctx, method, path, kind, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	limited := io.LimitReader(answer, maxAnswer)
	if into == nil {
		_, err = io.Copy(io.Discard, limited)
		return err
	}
	return json.NewDecoder(limited).Decode(into)
}

// object is the little of any API object that is shown here.
type object struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct {
			Type, Status, Reason, Message string
		} `json:"conditions"`
		NodeInfo struct {
			KubeletVersion          string `json:"kubeletVersion"`
			ContainerRuntimeVersion string `json:"containerRuntimeVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

func (o *object) is(condition string) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == condition {
			return c.Status == "True"
		}
	}
	return false
}

// state is a Node's, with what keeps it from taking pods.
func (o *object) state() string {
	state := "NotReady"
	if o.is("Ready") {
		state = "Ready"
	}
	for _, p := range []struct{ condition, short string }{
		{"MemoryPressure", "of its memory"}, {"DiskPressure", "of its disk"}, {"PIDPressure", "of its process IDs"},
	} {
		if o.is(p.condition) {
			state += fmt.Sprintf(", %s (it takes no new pods until more %s is free)", p.condition, p.short)
		}
	}
	return state
}

// lacksNetwork holds for a Node that waits for nothing but a pod network.
func (o *object) lacksNetwork() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "False" && strings.Contains(c.Message, "NetworkReady=false")
		}
	}
	return false
}

// waitReady is waitNode for the node of `shoal up`.
func waitReady(ctx context.Context, o *options) (state string, err error) {
	client, err := connect(o.kubeconfig())
	if err != nil {
		return "", err
	}
	if state, err = waitNode(ctx, client, o.NodeName, o.PodNetwork); err != nil {
		return "", errors.Join(fmt.Errorf("node %s is not Ready after %s; see %s", o.NodeName, startTimeout,
			o.path("log", "agent.log")), err)
	}
	return state, nil
}

// waitNode returns a node's state when it is Ready, or only lacks the pod network that
// somebody is to bring.
func waitNode(ctx context.Context, client *api, name, podNetwork string) (string, error) {
	var last error
	for {
		state, err := watchReady(ctx, client, name, podNetwork)
		if state != "" {
			return state, nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(last, ctx.Err())
		case <-time.After(20 * time.Millisecond): // the watch ended early: the server restarts
		}
	}
}

// watchReady follows the Node until waitNode has what it waits for or the watch ends.
func watchReady(ctx context.Context, client *api, name, podNetwork string) (state string, err error) {
	body, err := client.get(ctx, "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D"+url.QueryEscape(name))
	if err != nil {
		return "", err
	}
	defer body.Close()
	for in := json.NewDecoder(bufio.NewReader(body)); ; {
		var event struct{ Object object }
		if err := in.Decode(&event); err != nil {
			return "", err
		}
		if event.Object.is("Ready") || podNetwork == agentconfig.NoNetwork && event.Object.lacksNetwork() {
			return event.Object.state(), nil
		}
	}
}

// nodeIP is the address of --node-ip, or that of the default route; "" when
// the machine has none.
func nodeIP(o *options) string {
	if o.NodeIP != "" {
		return primary(o.NodeIP)
	}
	conn, err := net.Dial("udp", "198.51.100.1:9") // no packet is sent; the kernel picks the source
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}
