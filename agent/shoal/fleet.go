package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// fleet is the cluster as an administrator has its machines do something, one after
// the other.
type fleet struct {
	cluster    *options
	kubeconfig string
	steps      *steps
	client     *api
	unready    map[string]bool // nodes that were not Ready before
}

func newFleet(kubeconfig string, out io.Writer) fleet {
	return fleet{cluster: defaultOptions(), kubeconfig: kubeconfig, steps: &steps{out: out, start: time.Now()}}
}

// How long the cluster may take to be well before a machine, and between two looks.
const (
	gatePatience = time.Minute
	lookEach     = 500 * time.Millisecond
)

// fleetNode is what is looked at of a Node.
type fleetNode struct {
	object
	Metadata struct {
		Name                string
		Labels, Annotations map[string]string
	}
	Spec   struct{ Unschedulable bool }
	Status struct {
		Addresses []struct{ Type, Address string }
		NodeInfo  struct{ BootID string }
	}
}

// UnmarshalJSON reads the same text as the object and as the rest.
func (n *fleetNode) UnmarshalJSON(data []byte) error {
	type rest struct{ Metadata, Spec, Status any }
	if err := json.Unmarshal(data, &rest{&n.Metadata, &n.Spec, &n.Status}); err != nil {
		return err
	}
	return json.Unmarshal(data, &n.object)
}

func (n *fleetNode) version() string { return n.object.Status.NodeInfo.KubeletVersion }

// note writes down which nodes are not Ready at first; those that are meant must be. Only
// are their names, none means all.
func (f *fleet) note(nodes []*fleetNode, only []string) error {
	f.unready = map[string]bool{}
	names := map[string]bool{}
	for _, n := range nodes {
		name := n.Metadata.Name
		names[name] = true
		if n.is("Ready") {
			continue
		}
		f.unready[name] = true
		if len(only) == 0 || slices.Contains(only, name) {
			return fmt.Errorf("node %s is not Ready: mend that first, or leave it out by naming the others with --node",
				name)
		}
	}
	for _, name := range only {
		if !names[name] {
			return fmt.Errorf("--node %s: there is no such node", name)
		}
	}
	return nil
}

// connect makes an administrator's client, which lives for a wave or so.
func (f *fleet) connect(ctx context.Context) (err error) {
	f.client, err = f.cluster.admin(ctx, f.kubeconfig)
	return err
}

func (f *fleet) nodes(ctx context.Context) ([]*fleetNode, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var list struct{ Items []*fleetNode }
	if err := f.client.read(ctx, "/api/v1/nodes", &list); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", explainDial(err))
	}
	return list.Items, nil
}

// coordinators are the addresses, host:port, of those that serve the API now.
func (f *fleet) coordinators(ctx context.Context) (servers []string, err error) {
	var list struct {
		Subsets []struct {
			Addresses []struct{ IP string }
			Ports     []struct{ Port int }
		}
	}
	if err := f.client.read(ctx, "/api/v1/namespaces/default/endpoints/kubernetes", &list); err != nil {
		return nil, fmt.Errorf("ask for the coordinators: %w", err)
	}
	for _, s := range list.Subsets {
		for _, a := range s.Addresses {
			for _, p := range s.Ports {
				servers = append(servers, net.JoinHostPort(a.IP, strconv.Itoa(p.Port)))
			}
		}
	}
	if len(servers) == 0 {
		return nil, errors.New("the Service kubernetes has no endpoints")
	}
	return servers, nil
}

// gate waits until the cluster is as well as it was: all nodes Ready that were, and all
// coordinators of the store answering, so that one may stop.
func (f *fleet) gate(ctx context.Context) error {
	return f.until(ctx, gatePatience, func(ctx context.Context) (bool, error) {
		if err := f.connect(ctx); err != nil {
			return false, err
		}
		nodes, err := f.nodes(ctx)
		if err != nil {
			return false, err
		}
		for _, n := range nodes {
			if !n.is("Ready") && !f.unready[n.Metadata.Name] {
				return false, fmt.Errorf("node %s is not Ready", n.Metadata.Name)
			}
		}
		list, err := f.members(ctx)
		if err != nil {
			return false, err
		}
		for _, m := range list {
			if !m.Reached {
				return false, fmt.Errorf("coordinator %s does not answer", m.Name)
			}
		}
		return true, nil
	})
}

// storeMember is one of those that hold the cluster's state: a coordinator or a witness.
type storeMember struct {
	Name, URL string
	Reached   bool
}

// members are those of the embedded store; none of an etcd outside.
func (f *fleet) members(ctx context.Context) (list []storeMember, err error) {
	if err := f.client.read(ctx, coordinatorsPath, &list); err != nil && !answered(err, http.StatusNotFound) {
		return nil, fmt.Errorf("ask for the members of the store: %w", err)
	}
	return list, nil
}

// coordinatorsPath is where the coordinators' store tells of its members.
const coordinatorsPath = "/shoal/v1/coordinators"

// until asks again until it is so, or the patience is over; the last error tells why.
func (f *fleet) until(ctx context.Context, patience time.Duration, so func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := so(ctx)
		if ok {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("not within %s", patience))
		case <-time.After(lookEach):
		}
	}
}
