package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shoal-project/shoal/agent/upgrade"
)

// What a wave may take: a machine gets the package, tries it, and goes back if need be.
const (
	wavePatience = 5 * time.Minute
	gatePatience = time.Minute
	lookEach     = 500 * time.Millisecond
)

// fleetUpgrade has the machines of a cluster upgrade, a wave after the other.
type fleetUpgrade struct {
	cluster    *options
	kubeconfig string
	steps      *steps
	client     *api
	wish       upgrade.Wish
	unready    map[string]bool // nodes that were not Ready before
}

// fleetNode is what is looked at of a Node.
type fleetNode struct {
	object
	Metadata struct {
		Name                string
		Labels, Annotations map[string]string
	}
	Status struct {
		Addresses []struct{ Type, Address string }
	}
}

// UnmarshalJSON reads the same text as the object and as the rest.
func (n *fleetNode) UnmarshalJSON(data []byte) error {
	type rest struct{ Metadata, Status any }
	if err := json.Unmarshal(data, &rest{&n.Metadata, &n.Status}); err != nil {
		return err
	}
	return json.Unmarshal(data, &n.object)
}

func (n *fleetNode) version() string { return n.object.Status.NodeInfo.KubeletVersion }

func (n *fleetNode) result() upgrade.Result {
	return upgrade.ParseResult(n.Metadata.Annotations[upgrade.ResultAnnotation])
}

// runFleet upgrades all machines, or those that --node names.
func (o *upgradeOptions) runFleet(ctx context.Context, out io.Writer) error {
	f := &fleetUpgrade{cluster: defaultOptions(), kubeconfig: o.kubeconfig, steps: &steps{out: out, start: time.Now()}}
	p, err := upgrade.Inspect(ctx, o.to)
	if err != nil {
		return err
	}
	f.wish = upgrade.Wish{Format: p.Format, Version: p.Program()}
	if f.wish.Digest, err = digestOf(o.to); err != nil {
		return err
	}
	if err := f.connect(ctx); err != nil {
		return err
	}
	nodes, err := f.nodes(ctx)
	if err != nil {
		return err
	}
	coordinators, err := f.coordinators(ctx)
	if err != nil {
		return err
	}
	waves, err := f.plan(nodes, coordinators, o.nodes)
	if err != nil {
		return err
	}
	if len(waves) == 0 {
		f.steps.done("all nodes have version %s", p.Program())
		return nil
	}
	for _, server := range coordinators {
		if err := f.put(ctx, server, o.to); err != nil {
			return fmt.Errorf("give the package to the coordinator at %s: %w", server, err)
		}
	}
	f.steps.done("%d coordinators have the package %s, %s", len(coordinators), p.Program(), f.wish.Digest[:12])
	for i, wave := range waves {
		if err := f.gate(ctx); err != nil {
			return fmt.Errorf("stopped before %s: %w", strings.Join(wave, ", "), err)
		}
		if err := f.wave(ctx, wave); err != nil {
			return fmt.Errorf("stopped, %d waves of %d are done; mend that and run it again, or take the others back: %w",
				i, len(waves), err)
		}
	}
	f.steps.done("all nodes run %s", p.Program())
	return nil
}

func digestOf(file string) (string, error) {
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// connect makes an administrator's client, which lives for a wave or so.
func (f *fleetUpgrade) connect(ctx context.Context) (err error) {
	f.client, err = f.cluster.admin(ctx, f.kubeconfig)
	return err
}

func (f *fleetUpgrade) nodes(ctx context.Context) ([]*fleetNode, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var list struct{ Items []*fleetNode }
	if err := f.client.read(ctx, "/api/v1/nodes", &list); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", explainDial(err))
	}
	return list.Items, nil
}

// coordinators are the addresses, host:port, of those that serve the API now.
func (f *fleetUpgrade) coordinators(ctx context.Context) (servers []string, err error) {
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

// plan makes waves of the nodes that have another version; only are the names of those
// that are meant, none means all.
func (f *fleetUpgrade) plan(nodes []*fleetNode, coordinators, only []string) ([][]string, error) {
	f.unready = map[string]bool{}
	names := map[string]bool{}
	var members []upgrade.Member
	found := 0
	for _, n := range nodes {
		name := n.Metadata.Name
		names[name] = true
		m := upgrade.Member{Name: name, Zone: n.Metadata.Labels["topology.kubernetes.io/zone"]}
		for _, a := range n.Status.Addresses {
			m.Coordinator = m.Coordinator || slices.ContainsFunc(coordinators, func(server string) bool {
				host, _, err := net.SplitHostPort(server)
				return err == nil && host == a.Address
			})
		}
		if m.Coordinator {
			found++
		}
		meant := len(only) == 0 || slices.Contains(only, name)
		if !n.is("Ready") {
			if meant {
				return nil, fmt.Errorf("node %s is not Ready: mend that first, or leave it out by naming the others with --node",
					name)
			}
			f.unready[name] = true
		}
		if meant && n.version() != f.wish.Version {
			members = append(members, m)
		}
	}
	for _, name := range only {
		if !names[name] {
			return nil, fmt.Errorf("--node %s: there is no such node", name)
		}
	}
	if found < len(coordinators) {
		f.steps.said("%d coordinators are on machines without a node: run `shoal upgrade --to FILE` there first",
			len(coordinators)-found)
	}
	return upgrade.Waves(members), nil
}

// put gives a coordinator the package.
func (f *fleetUpgrade) put(ctx context.Context, server, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	there := *f.client
	there.server = "https://" + server
	return there.upload(ctx, upgrade.PackagesPath+"?digest="+f.wish.Digest, in)
}

// upload puts bytes as they are.
func (a *api) upload(ctx context.Context, path string, body io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, a.server+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if resp.StatusCode/100 != 2 {
		return newStatusError("PUT "+path, resp.StatusCode, text)
	}
	return err
}

// gate waits until the cluster is as well as it was: all nodes Ready that were, and all
// coordinators of the store answering, so that one may stop.
func (f *fleetUpgrade) gate(ctx context.Context) error {
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
		var list []struct {
			Name    string
			Reached bool
		}
		if err := f.client.read(ctx, coordinatorsPath, &list); err != nil && !answered(err, http.StatusNotFound) {
			return false, fmt.Errorf("ask for the members of the store: %w", err) // an outside etcd has none
		}
		for _, m := range list {
			if !m.Reached {
				return false, fmt.Errorf("coordinator %s does not answer", m.Name)
			}
		}
		return true, nil
	})
}

// coordinatorsPath is where the coordinators' store tells of its members.
const coordinatorsPath = "/shoal/v1/coordinators"

// until asks again until it is so, or the patience is over; the last error tells why.
func (f *fleetUpgrade) until(ctx context.Context, patience time.Duration, so func(context.Context) (bool, error)) error {
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

// wave asks nodes to upgrade, and waits for the result of each.
func (f *fleetUpgrade) wave(ctx context.Context, names []string) error {
	wish := f.wish
	wish.ID = strings.ToLower(rand.Text())
	text, err := json.Marshal(wish)
	if err != nil {
		return err
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		upgrade.WishAnnotation: string(text), upgrade.ResultAnnotation: nil}}}
	for _, name := range names {
		if err := f.client.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name), patch, nil); err != nil {
			return fmt.Errorf("ask node %s: %w", name, err)
		}
	}
	f.steps.done("asked: %s", strings.Join(names, ", "))
	waiting := slices.Clone(names)
	var failed []error
	err = f.until(ctx, wavePatience, func(ctx context.Context) (bool, error) {
		nodes, err := f.nodes(ctx)
		if err != nil { // the coordinator that is asked may be the one that is upgraded
			return false, err
		}
		for _, n := range nodes {
			r, name := n.result(), n.Metadata.Name
			if r.ID != wish.ID || !slices.Contains(waiting, name) {
				continue
			}
			waiting = slices.DeleteFunc(waiting, func(w string) bool { return w == name })
			if r.Phase == upgrade.Done {
				f.steps.done("%s runs %s", name, n.version())
			} else {
				failed = append(failed, fmt.Errorf("node %s: %s", name, r.Why))
			}
		}
		return len(waiting) == 0, fmt.Errorf("node %s has not told of an end", strings.Join(waiting, ", "))
	})
	if len(waiting) == 0 {
		err = nil
	}
	return errors.Join(append(failed, err)...)
}

// showFleet lists the nodes with what they were asked and how it went.
func (o *upgradeOptions) showFleet(ctx context.Context, out io.Writer) error {
	f := &fleetUpgrade{cluster: defaultOptions(), kubeconfig: o.kubeconfig}
	if err := f.connect(ctx); err != nil {
		return err
	}
	nodes, err := f.nodes(ctx)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tVERSION\tASKED FOR\tSTATE\tBECAUSE")
	for _, n := range nodes {
		asked, state, why := "-", "-", "-"
		if w, err := upgrade.ParseWish(n.Metadata.Annotations[upgrade.WishAnnotation]); w != nil {
			asked, state = w.Version, "under way"
			if r := n.result(); r.ID == w.ID {
				state = string(r.Phase)
				if r.Why != "" {
					why = strconv.QuoteToGraphic(r.Why)
				}
			}
		} else if err != nil {
			asked = "nothing that it heeds"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", n.Metadata.Name, n.version(), asked, strconv.Quote(state), why)
	}
	return t.Flush()
}
