package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/members"
)

// coordinatorsCommand shows and removes coordinators.
func coordinatorsCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	var server string
	ask := func(cmd *cobra.Command) (rest.Interface, error) {
		cfg, err := load(cmd)
		if err != nil {
			return nil, err
		}
		c, err := operator(cfg, server)
		if err != nil {
			return nil, err
		}
		d, err := discovery.NewDiscoveryClientForConfig(c)
		if err != nil {
			return nil, fmt.Errorf("connect to the API: %w", err)
		}
		return d.RESTClient(), nil
	}
	cmd := &cobra.Command{
		Use: "coordinators", Short: "List the coordinators that hold the cluster's state",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := ask(cmd)
			if err != nil {
				return err
			}
			return listCoordinators(cmd.Context(), c, cmd.OutOrStdout())
		},
	}
	cmd.PersistentFlags().StringVar(&server, "server", "", "URL of the API server (default: this machine's)")
	cmd.AddCommand(&cobra.Command{
		Use: "remove NAME", Short: "Take a coordinator out of the cluster, for good",
		Args: cobra.ExactArgs(1), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := ask(cmd)
			if err != nil {
				return err
			}
			data, err := c.Delete().AbsPath(members.Path).Param("name", args[0]).DoRaw(cmd.Context())
			if err != nil {
				return said("remove the coordinator", data, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(),
				"%s is out of the cluster; if it runs, it ends by itself. To join again it needs an empty state directory\n",
				args[0])
			return nil
		},
	})
	return cmd
}

// said prefers the words of an answer to what a client's library makes of its code.
func said(what string, body []byte, err error) error {
	if len(body) > 0 {
		return fmt.Errorf("%s: %s", what, body)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func listCoordinators(ctx context.Context, c rest.Interface, out io.Writer) error {
	data, err := c.Get().AbsPath(members.Path).DoRaw(ctx)
	if err != nil {
		return said("list the coordinators", data, err)
	}
	var list []members.Coordinator
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("list the coordinators: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tADDRESS\tSTATE\tANSWERS")
	votes, alive := 0, 0
	for _, m := range list {
		name := m.Name
		if name == "" {
			name = "(not started yet)"
		}
		answers := "no"
		if m.Reached {
			answers = "yes"
		}
		if m.State != "learner" && m.State != "expected" {
			votes++
			if m.Reached {
				alive++
			}
		}
		state := m.State
		if m.Witness {
			state += " (witness)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, m.URL, state, answers)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, outlook(votes, alive))
	return err
}

// outlook says how many may fail until nothing can be written.
func outlook(votes, alive int) string {
	majority := votes/2 + 1
	spare := alive - majority
	switch {
	case votes < 2:
		return "One coordinator: when it stops, pods run on and nothing changes."
	case spare < 0:
		return "Too few answer: nothing can be written until one more is back."
	case votes == 2:
		return "Two agree only together: add a third, or a witness, so that one may fail."
	case spare == 0:
		return "No further one may fail now."
	case spare == 1:
		return "One may fail, and all goes on."
	}
	return fmt.Sprintf("%d may fail, and all goes on.", spare)
}
