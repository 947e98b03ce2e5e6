package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Remote is a server that has manifests: one v1 Pod or a v1 PodList, JSON or YAML.
type Remote struct {
	URL string
	// Header is sent with each request.
	Header http.Header
	// Every is the time between two requests: nobody tells of changes.
	Every time.Duration
}

const (
	// remoteTime bounds an answer, as the kubelet does.
	remoteTime = 10 * time.Second
	// remoteBytes bounds its size.
	remoteBytes = 10 << 20
)

// answer is what a server has.
type answer struct {
	data []byte
	err  error
}

// follow asks the server again and again, and passes on what is new.
func (r *Remote) follow(ctx context.Context, to chan<- answer) {
	client := &http.Client{Timeout: remoteTime}
	defer client.CloseIdleConnections()
	var last answer
	for first := true; ; first = false {
		now := r.ask(ctx, client)
		same := (now.err == nil) == (last.err == nil) && bytes.Equal(now.data, last.data)
		if ctx.Err() == nil && (first || !same) {
			select {
			case to <- now:
				last = now
			case <-ctx.Done():
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.Every):
		}
	}
}

func (r *Remote) ask(ctx context.Context, client *http.Client) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return answer{err: err}
	}
	for name, values := range r.Header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, remoteBytes+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("the server answers %s", resp.Status)
	case err == nil && len(data) == 0:
		err = errors.New("the server answers nothing")
	case len(data) > remoteBytes:
		err = fmt.Errorf("the server answers more than %d bytes", remoteBytes)
	}
	if err != nil {
		return answer{err: err}
	}
	return answer{data: data}
}

// parse reads what a server has. One manifest that cannot be used makes all of it useless:
// what was there before stays.
func (s *Static) parse(data []byte) ([]*corev1.Pod, error) {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Items           []map[string]json.RawMessage `json:"items"`
	}
	if err := yaml.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	if list.Kind != "PodList" || list.APIVersion != "v1" {
		p, err := s.pod(data, nameHTTP, s.Remote.URL)
		if err != nil {
			return nil, err
		}
		return []*corev1.Pod{p}, nil
	}
	pods := []*corev1.Pod{}
	for i, item := range list.Items {
		if item["kind"] == nil && item["apiVersion"] == nil && item != nil { // they need not say it
			item["apiVersion"], item["kind"] = json.RawMessage(`"v1"`), json.RawMessage(`"Pod"`)
		}
		one, err := json.Marshal(item)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		p, err := s.pod(one, nameHTTP, s.Remote.URL)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}
