package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
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

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/jointoken"
	"github.com/shoal-project/shoal/coordinator/joinapi"
)

const (
	secretsPath = "/api/v1/namespaces/kube-system/secrets"
	tokenPrefix = "bootstrap-token-"
	tokenType   = "bootstrap.kubernetes.io/token"
	// maxUses bounds --uses, and with it what one leaked token can do.
	maxUses = 1000
	// coordinatorTTL is the life of a token with which keys are given away.
	coordinatorTTL = time.Hour
	// minTTL leaves time to paste the token.
	minTTL = time.Minute
)

// tokenOptions are the flags of `shoal token`.
type tokenOptions struct {
	*options
	kubeconfig string
	ttl        time.Duration
	uses       int
	replace    string
	servers    []string
	// coordinator and witness make tokens of these roles.
	coordinator, witness bool
}

// roles are the groups of tokens by what they make of a machine.
var roles = map[jointoken.Role]string{
	jointoken.RoleNode:        joinapi.NodesGroup,
	jointoken.RoleCoordinator: joinapi.CoordinatorsGroup,
	jointoken.RoleWitness:     joinapi.WitnessesGroup,
}

// role is what the flags ask for.
func (o *tokenOptions) role() (jointoken.Role, error) {
	switch {
	case (o.coordinator || o.witness) && o.replace != "":
		return "", errors.New("--replace names a Node: it goes with tokens of nodes only")
	case o.coordinator && o.witness:
		return "", errors.New("--coordinator or --witness: a token of a coordinator may be used for a witness")
	case o.coordinator:
		return jointoken.RoleCoordinator, nil
	case o.witness:
		return jointoken.RoleWitness, nil
	}
	return jointoken.RoleNode, nil
}

func tokenCommand() *cobra.Command {
	o := &tokenOptions{options: defaultOptions()}
	c := &cobra.Command{Use: "token", Short: "Make, list and delete tokens that machines join with; on a coordinator's machine"}
	c.PersistentFlags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	c.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", "", "an administrator's kubeconfig (default: the keys on this machine)")
	create := &cobra.Command{
		Use: "create", Short: "Print a token for `shoal join`", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (o.coordinator || o.witness) && !cmd.Flags().Changed("ttl") {
				o.ttl = coordinatorTTL
			}
			return o.create(cmd.Context(), os.Stdout)
		},
	}
	f := create.Flags()
	f.DurationVar(&o.ttl, "ttl", 24*time.Hour, "how long the token can be used; one of a coordinator or a witness: 1h unless given")
	f.IntVar(&o.uses, "uses", 1, "how many machines can join with it, 0 for any number")
	f.StringVar(&o.replace, "replace", "", "name of a Node that a machine may take the place of though it lives")
	f.BoolVar(&o.coordinator, "coordinator", false, "for a further coordinator: it gets the cluster's keys; keep the token as you keep these")
	f.BoolVar(&o.witness, "witness", false, "for a machine that only votes in the coordinators' store")
	f.StringSliceVar(&o.servers, "server", nil, "host:port of the API in the token (default: all coordinators that live)")
	c.AddCommand(create,
		&cobra.Command{
			Use: "list", Short: "List the tokens that can be used", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return o.list(cmd.Context(), os.Stdout) },
		},
		&cobra.Command{
			Use: "delete TOKEN...", Short: "Delete tokens, by their ID or their text", Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return o.delete(cmd.Context(), os.Stdout, args) },
		})
	return c
}

// tokenSecret is the Secret of a token.
type tokenSecret struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   objectName        `json:"metadata"`
	Type       string            `json:"type"`
	StringData map[string]string `json:"stringData,omitempty"`
	Data       map[string][]byte `json:"data,omitempty"`
}

type objectName struct {
	Name string `json:"name"`
}

func (o *tokenOptions) create(ctx context.Context, out io.Writer) error {
	if o.ttl < minTTL {
		return fmt.Errorf("--ttl %s: give at least %s", o.ttl, minTTL)
	}
	if o.uses < 0 || o.uses > maxUses {
		return fmt.Errorf("--uses %d: give 1 to %d, or 0 for any number", o.uses, maxUses)
	}
	role, err := o.role()
	if err != nil {
		return err
	}
	client, err := o.admin(ctx, o.kubeconfig)
	if err != nil {
		return err
	}
	expires := time.Now().Add(o.ttl)
	t := jointoken.Token{Role: role, Servers: o.servers, ID: randomText(6), Secret: randomText(16),
		Expires: expires.Unix()}
	if t.CA, err = caHash(ctx, client); err != nil {
		return err
	}
	if len(t.Servers) == 0 {
		if t.Servers, err = servers(ctx, client); err != nil {
			return err
		}
	}
	text, err := t.Encode()
	if err != nil {
		return fmt.Errorf("--server: %w", err)
	}
	if err := client.do(ctx, http.MethodPost, secretsPath, o.secret(t, expires), nil); err != nil {
		return fmt.Errorf("keep the token: %w", err)
	}
	fmt.Fprintln(out, text)
	return nil
}

func (o *tokenOptions) secret(t jointoken.Token, expires time.Time) tokenSecret {
	s := tokenSecret{APIVersion: "v1", Kind: "Secret", Metadata: objectName{tokenPrefix + t.ID}, Type: tokenType,
		StringData: map[string]string{
			"token-id": t.ID, "token-secret": t.Secret, "usage-bootstrap-authentication": "true",
			"expiration":        expires.UTC().Format(time.RFC3339),
			"auth-extra-groups": roles[t.Role],
			"description":       "made by shoal token create",
		}}
	if o.uses > 0 {
		s.StringData[joinapi.UsesKey] = strconv.Itoa(o.uses)
	}
	if o.replace != "" {
		s.StringData[joinapi.ReplaceKey] = o.replace
	}
	return s
}

// randomText is n of a-z and 0-9.
func randomText(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var out []byte
	for b := make([]byte, 1); len(out) < n; {
		_, _ = rand.Read(b) // never fails
		if int(b[0]) < 256/len(letters)*len(letters) {
			out = append(out, letters[int(b[0])%len(letters)])
		}
	}
	return string(out)
}

// caHash is that of the cluster's CA, as the coordinator has it now.
func caHash(ctx context.Context, client *api) ([]byte, error) {
	body, err := client.get(ctx, joinapi.CAPath)
	if err != nil {
		return nil, fmt.Errorf("ask for the cluster's CA: %w", err)
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxCA))
	if err != nil {
		return nil, fmt.Errorf("ask for the cluster's CA: %w", err)
	}
	for _, ca := range certificates(data) {
		return jointoken.HashCA(ca), nil
	}
	return nil, errors.New("ask for the cluster's CA: the answer has no certificate")
}

// maxCA bounds what a server says of its CA, which nobody has verified yet.
const maxCA = 64 << 10

// certificates are those in PEM text; what is none is passed over.
func certificates(data []byte) (out []*x509.Certificate) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

// servers are where the API is served for other machines.
func servers(ctx context.Context, client *api) (out []string, err error) {
	var list struct {
		Items []struct {
			Endpoints []struct{ Addresses []string }
			Ports     []struct{ Port int }
		}
	}
	err = client.read(ctx, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector="+
		url.QueryEscape("kubernetes.io/service-name=kubernetes"), &list)
	if err != nil {
		return nil, fmt.Errorf("find the coordinators: %w", err)
	}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			for _, p := range slice.Ports {
				for _, ip := range e.Addresses {
					out = append(out, net.JoinHostPort(ip, strconv.Itoa(p.Port)))
				}
			}
		}
	}
	slices.Sort(out)
	out = slices.DeleteFunc(slices.Compact(out), func(s string) bool {
		host, _, _ := net.SplitHostPort(s)
		return net.ParseIP(host).IsLoopback()
	})
	if len(out) == 0 {
		return nil, errors.New("no coordinator has an address that other machines reach: set advertiseAddress in " +
			"coordinator.yaml, or give --server")
	}
	return out[:min(len(out), jointoken.MaxServers)], nil
}

func (o *tokenOptions) list(ctx context.Context, out io.Writer) error {
	client, err := o.admin(ctx, o.kubeconfig)
	if err != nil {
		return err
	}
	var list struct{ Items []tokenSecret }
	if err := client.read(ctx, secretsPath+"?fieldSelector="+url.QueryEscape("type="+tokenType), &list); err != nil {
		return err
	}
	slices.SortFunc(list.Items, func(a, b tokenSecret) int { return cmp.Compare(a.expiration(), b.expiration()) })
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "ID\tFOR\tEXPIRES\tUSES LEFT\tREPLACES")
	for _, s := range list.Items {
		role := s.role()
		if role == "" {
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", s.Data["token-id"], role, cmp.Or(s.expiration(), "never"),
			cmp.Or(string(s.Data[joinapi.UsesKey]), "any"), cmp.Or(string(s.Data[joinapi.ReplaceKey]), "-"))
	}
	return nil
}

// role is what the token makes of a machine; empty for tokens of others.
func (s tokenSecret) role() jointoken.Role {
	groups := strings.Split(string(s.Data["auth-extra-groups"]), ",")
	for role, group := range roles {
		if slices.Contains(groups, group) {
			return role
		}
	}
	return ""
}

func (s tokenSecret) expiration() string { return string(s.Data["expiration"]) }

func (o *tokenOptions) delete(ctx context.Context, out io.Writer, args []string) error {
	client, err := o.admin(ctx, o.kubeconfig)
	if err != nil {
		return err
	}
	for _, arg := range args {
		id, err := tokenID(arg)
		if err != nil {
			return err
		}
		err = client.do(ctx, http.MethodDelete, secretsPath+"/"+tokenPrefix+id, nil, nil)
		if answered(err, http.StatusNotFound) {
			return fmt.Errorf("there is no token %s; `shoal token list` shows those that there are", id)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "token %s is deleted\n", id)
	}
	return nil
}

// tokenID is a token's ID, which may be given by itself or in the token.
func tokenID(arg string) (string, error) {
	if len(arg) == 6 && strings.Trim(arg, "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
		return arg, nil
	}
	t, err := jointoken.Decode(arg)
	return t.ID, err
}
