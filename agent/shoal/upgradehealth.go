package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/upgrade"
)

// health asks the API about this machine's node, as the node.
type health struct {
	m    *machine
	apis []*api // the coordinator of the kubeconfig first
}

func newHealth(config string) (*health, error) {
	m, err := (&joinOptions{config: config}).machine()
	if err != nil {
		return nil, err
	}
	if cert, err := certificateOf(m.kubeconfig()); err == nil {
		m.name = strings.TrimPrefix(cert.Subject.CommonName, "system:node:")
	}
	first, err := m.client()
	if err != nil {
		return nil, err
	}
	h := &health{m: m, apis: []*api{first}}
	var others []string
	if data, err := os.ReadFile(m.path(knownFile)); err == nil {
		_ = json.Unmarshal(data, &others) // none is as good
	}
	for _, server := range others {
		other := *first
		other.server = "https://" + strings.TrimPrefix(server, "https://")
		if other.server != first.server {
			h.apis = append(h.apis, &other)
		}
	}
	return h, nil
}

// askTime is how long one coordinator may take to answer.
const askTime = 3 * time.Second

// read asks one coordinator after the other.
func (h *health) read(ctx context.Context, path string, into any) error {
	var errs []error
	for _, a := range h.apis {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		err := a.read(ctx, path, into)
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// podList is what is looked at of pods.
type podList struct {
	Items []struct {
		Metadata struct{ Name, Namespace, UID string }
		Status   struct {
			ContainerStatuses []struct {
				Name, ContainerID string
				Ready             bool
			}
		}
	}
}

// containers are those of the node's pods that are ready, or, with all, any.
func (h *health) containers(ctx context.Context, all bool) (map[string]string, error) {
	var list podList
	path := "/api/v1/pods?fieldSelector=" + url.QueryEscape("spec.nodeName="+h.m.name)
	if err := h.read(ctx, path, &list); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range list.Items {
		for _, c := range p.Status.ContainerStatuses {
			if all || c.Ready {
				out[p.Metadata.UID+"/"+p.Metadata.Namespace+"/"+p.Metadata.Name+"/"+c.Name] = c.ContainerID
			}
		}
	}
	return out, nil
}

func (h *health) node(ctx context.Context) (*object, error) {
	o := &object{}
	return o, h.read(ctx, "/api/v1/nodes/"+url.PathEscape(h.m.name), o)
}

// note writes down how the node is; one that is not well is not upgraded, for nobody
// could say afterwards whether it is.
func (h *health) note(ctx context.Context, r *upgrade.Record) error {
	o, err := h.node(ctx)
	if err != nil {
		return fmt.Errorf("whether the node is well must be known before and after: %w", explainDial(err))
	}
	if !o.is("Ready") {
		return fmt.Errorf("node %s is not Ready: mend that first", h.m.name)
	}
	r.Node, r.From = h.m.name, o.Status.NodeInfo.KubeletVersion
	r.Containers, err = h.containers(ctx, false)
	return err
}

// wait returns when the node is Ready with a version. A container that another one
// stands for is an error at once, unless it is the old version that came back.
func (h *health) wait(ctx context.Context, r *upgrade.Record, version string) error {
	for {
		err := h.look(ctx, r, version)
		if err == nil || errors.Is(err, errRestarted) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(300 * time.Millisecond):
		}
	}
}

var errRestarted = errors.New("a container was started anew")

func (h *health) look(ctx context.Context, r *upgrade.Record, version string) error {
	o, err := h.node(ctx)
	if err != nil {
		return fmt.Errorf("ask for node %s: %w", r.Node, err)
	}
	switch {
	case o.Status.NodeInfo.KubeletVersion != version:
		return fmt.Errorf("node %s has not told that it runs %s", r.Node, version)
	case !o.is("Ready"):
		return fmt.Errorf("node %s is not Ready", r.Node)
	case version == r.From:
		return nil
	}
	now, err := h.containers(ctx, true)
	if err != nil {
		return fmt.Errorf("ask for the pods of node %s: %w", r.Node, err)
	}
	for name, id := range r.Containers {
		if is, there := now[name]; there && is != id {
			_, name, _ := strings.Cut(name, "/")
			return fmt.Errorf("%w: %s", errRestarted, name)
		}
	}
	return nil
}
