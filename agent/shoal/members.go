package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/gossip"
)

// membersOptions tell whose view is shown.
type membersOptions struct {
	where
	node, kubeconfig string
	json             bool
}

func membersCommand() *cobra.Command {
	var o membersOptions
	c := &cobra.Command{
		Use: "members", Short: "Show the machines of the cluster as this one's agent sees them, by gossip and without the API",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), os.Stdout) },
	}
	f := c.Flags()
	f.StringVar(&o.dataDir, "data-dir", defaultOptions().DataDir, "the cluster's data directory")
	f.StringVar(&o.config, "config", "",
		"the agent's configuration where `shoal up` started none (default: "+installedConfig+")")
	f.StringVar(&o.node, "node", "", "ask the agent of this node, through the API")
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"with --node: an administrator's kubeconfig (default: the keys on this machine)")
	f.BoolVar(&o.json, "json", false, "print what the agent answers")
	return c
}

func (o *membersOptions) run(ctx context.Context, out io.Writer) error {
	if o.kubeconfig != "" && o.node == "" {
		return errors.New("--kubeconfig goes with --node: this machine's agent is asked at its socket")
	}
	list, err := o.ask(ctx)
	if err != nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	return printMembers(out, list, time.Now())
}

func (o *membersOptions) ask(ctx context.Context) ([]gossip.View, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var list []gossip.View
	if o.node == "" {
		client, socket, err := o.local()
		if err != nil {
			return nil, err
		}
		if err := client.read(ctx, gossip.MembersPath, &list); err != nil {
			return nil, fmt.Errorf("ask the agent at %s: %w; is it running, and are you root? see `shoal status`",
				socket, err)
		}
		return list, nil
	}
	cluster := defaultOptions()
	cluster.DataDir = o.dataDir
	client, err := cluster.admin(ctx, o.kubeconfig)
	if err != nil {
		return nil, err
	}
	path := "/api/v1/nodes/" + url.PathEscape(o.node) + "/proxy" + gossip.MembersPath
	if err := client.read(ctx, path, &list); err != nil {
		return nil, fmt.Errorf("ask the agent of node %s: %w", o.node, err)
	}
	return list, nil
}

// local reaches this machine's agent, coordinator or not.
func (o *membersOptions) local() (*api, string, error) {
	dir, err := o.runDir()
	if err != nil {
		return nil, "", err
	}
	socket := filepath.Join(dir, gossip.ViewSocket)
	return &api{server: "http://agent", http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}}, socket, nil
}

func printMembers(out io.Writer, list []gossip.View, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tROLE\tSTATE\tSINCE\tADDRESS\tZONE\tVERSION\tPODS\tPRESSURE\tROUND TRIP\tSAID BY")
	for _, m := range list {
		trip := "-"
		switch {
		case m.Local:
			trip = "(this view)"
		case m.RoundTrip > 0:
			trip = fmt.Sprintf("%.1f ms", 1000*m.RoundTrip)
		}
		// Others choose their zones and more: what is printed holds no control characters.
		row := []string{printable(m.Name), printable(string(m.Role)), printable(string(m.State)), ago(now.Sub(m.Since)),
			orDash(m.Addr), orDash(m.Zone), orDash(m.Version), podsOf(m), pressureOf(m), trip, saidBy(m)}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// podsOf is the number of pods of a node that told it.
func podsOf(m gossip.View) string {
	if m.Pods == nil || m.Role != gossip.RoleAgent {
		return "-"
	}
	return strconv.Itoa(*m.Pods)
}

func pressureOf(m gossip.View) string {
	var list []string
	for _, p := range m.Pressure {
		list = append(list, printable(string(p)))
	}
	switch {
	case len(list) > 0:
		return strings.Join(list, ",")
	case m.Version == "" || m.Role != gossip.RoleAgent:
		return "-" // nothing was heard of it
	}
	return "none"
}

func saidBy(m gossip.View) string {
	if m.SaidBy == m.Name {
		return "itself"
	}
	return orDash(m.SaidBy)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

// printable is s as it stands where it is of letters and the like, else quoted.
func printable(s string) string {
	if q := fmt.Sprintf("%q", s); q != `"`+s+`"` {
		return q
	}
	return s
}

// ago rounds to what a reader wants to know.
func ago(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return d.Round(100*time.Millisecond).String() + " ago"
	case d < 3*time.Hour:
		return fmt.Sprintf("%.0fm ago", d.Minutes())
	}
	return fmt.Sprintf("%.0fh ago", d.Hours())
}
