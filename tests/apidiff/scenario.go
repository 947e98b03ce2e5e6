package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// scenario is a row of requests that change what is stored, or whose answers come in
// parts. What came of it is compared, and recorded, as one answer: by the names of
// its parts.
type scenario struct {
	name string
	run  func(ctx context.Context, s *server) (map[string]any, error)
}

// patience is how long a scenario waits for what one request brings about.
const patience = time.Minute

// play runs a scenario in both servers.
func (r *report) play(ctx context.Context, p *pair, sc scenario) error {
	req := request{Method: "PLAY", Path: sc.name, What: "scenario", Kind: sc.name}
	var answers [2]answer
	for i, s := range []*server{p.upstream, p.shoal} {
		var err error
		if answers[i], err = s.play(ctx, sc, req); err != nil {
			return err
		}
	}
	r.judge(req, answers[0], answers[1])
	return nil
}

func (s *server) play(ctx context.Context, sc scenario, req request) (answer, error) {
	if s.tape != nil && s.tape.playing {
		return s.tape.play(req)
	}
	out, err := sc.run(ctx, s)
	if err != nil {
		return answer{}, fmt.Errorf("%s: %s: %w", s.name, sc.name, err)
	}
	a := answer{Code: http.StatusOK, Body: encode(out)}
	if s.tape != nil {
		err = s.tape.keep(req, a)
	}
	return a, err
}

// must sends a request of a scenario that has to be done.
func (s *server) must(ctx context.Context, method, path, contentType, body string) (map[string]any, error) {
	a, err := s.send(ctx, request{Method: method, Path: path, Type: contentType, Body: []byte(body)})
	if err != nil {
		return nil, err
	}
	if a.Code >= http.StatusBadRequest {
		return nil, fmt.Errorf("%s %s %s: %d: %s", method, path, cut(body, 200), a.Code, cut(string(a.Body), 500))
	}
	var out map[string]any
	return out, json.Unmarshal(a.Body, &out)
}

const (
	plainJSON = "application/json"
	mergeType = "application/merge-patch+json"
)

func (s *server) create(ctx context.Context, path, body string) error {
	_, err := s.must(ctx, http.MethodPost, path, plainJSON, body)
	return err
}

// createNamespace makes a namespace with the ServiceAccount that its Pods have,
// unless a controller was first.
func (s *server) createNamespace(ctx context.Context, name string) error {
	if err := s.create(ctx, "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+name+`"}}`); err != nil {
		return err
	}
	a, err := s.send(ctx, request{Method: http.MethodPost, Path: "/api/v1/namespaces/" + name + "/serviceaccounts",
		Type: plainJSON, Body: []byte(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`)})
	if err == nil && a.Code != http.StatusCreated && a.Code != http.StatusConflict {
		err = fmt.Errorf("ServiceAccount of %s: %d: %s", name, a.Code, a.Body)
	}
	return err
}

// until asks until an answer is as wanted: what servers know of by watches of their
// own comes a moment later.
func (s *server) until(ctx context.Context, req request, wanted func(answer) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		a, err := s.send(ctx, req)
		if err == nil && wanted(a) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %s %s %s: not as wanted: %d %s", s.name, req.Method, req.Path,
				cut(string(req.Body), 300), a.Code, cut(string(a.Body), 500))
		case <-time.After(50 * time.Millisecond): // no event tells of it
		}
	}
}

// outcome is what of an answer a scenario keeps: an error's code and words, or what
// there is without what each server makes itself.
func outcome(a answer) any {
	if s, failed := failure(a); failed {
		return errorOf(a.Code, string(s.Reason), s.Message)
	}
	var v any
	if json.Unmarshal(a.Body, &v) != nil {
		return string(a.Body)
	}
	strip(v)
	return v
}

func errorOf(code int, reason, message string) any {
	return map[string]any{"code": code, "reason": reason, "message": general(message)}
}

// watching is a watch of a scenario, and what ends it: the nth event of a type that
// is of an object of a name, if one is told; the end of the answer without a type.
type watching struct {
	name, path, accept string
	event, of          string
	nth                int
}

// follow begins a watch and returns what reads its events. They are read when the
// watch is over, so that a server that sends none is one with a difference.
func (s *server) follow(ctx context.Context, w watching) (func() (any, error), error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+w.path, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("User-Agent", "apidiff")
	if w.accept != "" {
		req.Header.Set("Accept", w.accept)
	}
	client := *s.client
	client.Timeout = 0 // ctx has one
	resp, err := client.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() (any, error) {
		defer cancel()
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			var body bytes.Buffer
			_, err := body.ReadFrom(http.MaxBytesReader(nil, resp.Body, 1<<20))
			return outcome(answer{Code: resp.StatusCode, Body: body.Bytes()}), err
		}
		return readEvents(json.NewDecoder(resp.Body), w), nil
	}, nil
}

// readEvents reads events up to that which ends the watch.
func readEvents(from *json.Decoder, w watching) []any {
	out := []any{}
	seen := 0
	for {
		var e struct {
			Type   string         `json:"type"`
			Object map[string]any `json:"object"`
		}
		if err := from.Decode(&e); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return append(out, "no event that ends it")
			}
			return append(out, "end")
		}
		meta, _ := e.Object["metadata"].(map[string]any)
		name, _ := meta["name"].(string)
		strip(e.Object)
		if e.Type == "ERROR" {
			if text, ok := e.Object["message"].(string); ok {
				e.Object["message"] = general(text)
			}
		}
		out = append(out, map[string]any{"type": e.Type, "object": e.Object})
		if e.Type == w.event && (w.of == "" || w.of == name) {
			if seen++; seen >= w.nth {
				return out
			}
		}
	}
}

// asJSONText reads JSON; what is none is nothing.
func asJSONText(data []byte) (v any) {
	if json.Unmarshal(data, &v) != nil {
		return nil
	}
	return v
}
