package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// drainedPod is what draining needs to know of a pod.
type drainedPod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Annotations       map[string]string `json:"annotations"`
		OwnerReferences   []struct {
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

func (p *drainedPod) String() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// stays holds for pods that a drain leaves alone, as kubectl's does: their DaemonSet
// would make them anew, their manifest is on this machine, or they have ended.
func (p *drainedPod) stays() bool {
	if _, mirror := p.Metadata.Annotations["kubernetes.io/config.mirror"]; mirror {
		return true
	}
	return p.controller() == "DaemonSet" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// controller is the kind of who makes the pod anew; empty: nobody.
func (p *drainedPod) controller() string {
	for _, o := range p.Metadata.OwnerReferences {
		if o.Controller {
			return o.Kind
		}
	}
	return ""
}

// drain keeps new pods away and evicts those that are there, as budgets allow.
func (o *leaveOptions) drain(ctx context.Context, client *api, m *machine, steps *steps) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err := client.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(m.name),
		map[string]any{"spec": map[string]any{"unschedulable": true}}, nil)
	if answered(err, http.StatusNotFound) {
		return nil // left before, or never came
	}
	if err != nil {
		return fmt.Errorf("cordon node %s: %w", m.name, explainDial(err))
	}
	pods, err := podsToDrain(ctx, client, m.name)
	if err != nil {
		return err
	}
	var unmanaged []string
	for _, p := range pods {
		if p.controller() == "" {
			unmanaged = append(unmanaged, p.String())
		}
	}
	if len(unmanaged) > 0 && !o.force {
		return fmt.Errorf("nobody makes these pods anew elsewhere: %s", strings.Join(unmanaged, ", "))
	}
	if err := evictAll(ctx, client, m.name, steps); err != nil {
		return err
	}
	steps.done("node %s is drained, %d pods went", m.name, len(pods))
	return nil
}

func podsToDrain(ctx context.Context, client *api, node string) (out []*drainedPod, err error) {
	var list struct{ Items []*drainedPod }
	err = client.read(ctx, "/api/v1/pods?fieldSelector="+url.QueryEscape("spec.nodeName="+node), &list)
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", node, explainDial(err))
	}
	for _, p := range list.Items {
		if !p.stays() {
			out = append(out, p)
		}
	}
	return out, nil
}

// drainPause is how long a drain waits between two looks at the pods.
const drainPause = time.Second

// evictAll evicts until no pod is left. A budget that is used up says no for now.
func evictAll(ctx context.Context, client *api, node string, steps *steps) error {
	told := map[string]bool{}
	var waiting []string
	for {
		pods, err := podsToDrain(ctx, client, node)
		if ctx.Err() != nil && len(waiting) > 0 {
			return lateError(waiting)
		}
		if err != nil || len(pods) == 0 {
			return err
		}
		waiting = nil
		for _, p := range pods {
			held, err := evict(ctx, client, p)
			if err != nil {
				return err
			}
			if held != "" && !told[p.Metadata.UID] {
				told[p.Metadata.UID] = true
				steps.said("pod %s waits: %s", p, held)
			}
			waiting = append(waiting, p.String())
		}
		select {
		case <-ctx.Done():
			return lateError(waiting)
		case <-time.After(drainPause):
		}
	}
}

func lateError(pods []string) error {
	return fmt.Errorf("these pods did not end in time: %s", strings.Join(pods, ", "))
}

// evict asks for a pod's end; held says why it may not end yet.
func evict(ctx context.Context, client *api, p *drainedPod) (held string, err error) {
	if p.Metadata.DeletionTimestamp != "" {
		return "", nil
	}
	name, namespace := p.Metadata.Name, p.Metadata.Namespace
	err = client.do(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods/"+name+"/eviction", map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata":      map[string]string{"name": name, "namespace": namespace},
		"deleteOptions": map[string]any{"preconditions": map[string]string{"uid": p.Metadata.UID}},
	}, nil)
	switch {
	case err == nil, answered(err, http.StatusNotFound, http.StatusConflict):
		return "", nil
	case answered(err, http.StatusTooManyRequests):
		return err.Error(), nil
	case ctx.Err() != nil:
		return "", nil // the caller tells
	}
	return "", fmt.Errorf("evict pod %s: %w", p, explainDial(err))
}
