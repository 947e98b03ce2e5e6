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

// wavePatience is what a wave may take: a machine gets the package, tries it, and goes
// back if need be.
const wavePatience = 5 * time.Minute

// fleetUpgrade has the machines of a cluster upgrade, a wave after the other.
type fleetUpgrade struct {
	fleet
	wish upgrade.Wish
}

func (n *fleetNode) result() upgrade.Result {
	return upgrade.ParseResult(n.Metadata.Annotations[upgrade.ResultAnnotation])
}

// runFleet upgrades all machines, or those that --node names.
func (o *upgradeOptions) runFleet(ctx context.Context, out io.Writer) error {
	f := &fleetUpgrade{fleet: newFleet(o.kubeconfig, out)}
	file, err := packageFile(packagesDir, o.to, upgrade.Deb, upgrade.RPM)
	if err != nil {
		return err
	}
	p, err := upgrade.Inspect(ctx, file)
	if err != nil {
		return err
	}
	f.wish = upgrade.Wish{Format: p.Format, Version: p.Program()}
	if f.wish.Digest, err = digestOf(file); err != nil {
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
	members, err := f.members(ctx)
	if err != nil {
		return err
	}
	waves, err := f.plan(nodes, hostsOf(coordinators, members), o.nodes)
	if err != nil {
		return err
	}
	if len(waves) == 0 {
		f.steps.done("all nodes have version %s", p.Program())
		return nil
	}
	for _, server := range coordinators {
		if err := f.put(ctx, server, file); err != nil {
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

// hostsOf are the addresses of machines that have the API, or a member of the store.
func hostsOf(coordinators []string, members []storeMember) (hosts []string) {
	for _, server := range coordinators {
		if host, _, err := net.SplitHostPort(server); err == nil {
			hosts = append(hosts, host)
		}
	}
	for _, m := range members { // one that is alone shows an address to nobody
		u, err := url.Parse(m.URL)
		if err != nil {
			continue
		}
		if ip := net.ParseIP(u.Hostname()); ip != nil && !ip.IsLoopback() {
			hosts = append(hosts, ip.String())
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// plan makes waves of the nodes that have another version; only are the names of those
// that are meant, none means all.
func (f *fleetUpgrade) plan(nodes []*fleetNode, hosts, only []string) ([][]string, error) {
	if err := f.note(nodes, only); err != nil {
		return nil, err
	}
	var members []upgrade.Member
	found := 0
	for _, n := range nodes {
		name := n.Metadata.Name
		m := upgrade.Member{Name: name, Zone: n.Metadata.Labels["topology.kubernetes.io/zone"]}
		for _, a := range n.Status.Addresses {
			m.Coordinator = m.Coordinator || slices.Contains(hosts, a.Address)
		}
		if m.Coordinator {
			found++
		}
		meant := len(only) == 0 || slices.Contains(only, name)
		if meant && n.version() != f.wish.Version {
			members = append(members, m)
		}
	}
	if found < len(hosts) {
		f.steps.said("%d coordinators or witnesses are on machines without a node: run `shoal upgrade --to FILE` there first",
			len(hosts)-found)
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
				f.steps.done("%s runs %s", name, printable(n.version()))
			} else {
				failed = append(failed, fmt.Errorf("node %s: %s", name, printable(r.Why)))
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
	f := newFleet(o.kubeconfig, out)
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
			if r := n.result(); r.ID == w.ID && r.Phase.Over() {
				state = string(r.Phase)
				if r.Why != "" {
					why = strconv.QuoteToGraphic(r.Why)
				}
			}
		} else if err != nil {
			asked = "nothing that it heeds"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", n.Metadata.Name, printable(n.version()), asked, state, why)
	}
	return t.Flush()
}
