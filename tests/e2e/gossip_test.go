package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/tests/harness"
)

// rogueEnv makes the test program a rogue gossip member: its address, the key
// file, and the members to join.
const rogueEnv = "SHOAL_TEST_ROGUE"

// TestRogueMember: who has the gossip's key and a place in the network, but no
// certificate of a node, takes neither traffic nor a node's name.
func TestRogueMember(t *testing.T) {
	s := newSpace(t)
	host, err := cluster.Host("rogue")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Stop(); err != nil {
			t.Error(err)
		}
	}()
	key := filepath.Join(cluster.Dir, "coordinator", "pki", "gossip.key")
	cmd := exec.Command("nsenter", "--net=/run/netns/"+host.NetNS, "--", os.Args[0])
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("%s=%s %s %s:7946 %s:7947", rogueEnv, host.Address, key, cluster.Address, cluster.Address))
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	harness.Eventually(t, "the node tells of the rogue", func() (bool, string) {
		logs, err := os.ReadFile(filepath.Join(cluster.Dir, "log", "agent.log"))
		return strings.Contains(string(logs), "gossip: a member is ignored"), fmt.Sprint(err)
	})
	tries := func() int {
		out, err := os.ReadFile(said.Name())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(out), triesToJoin)
	}
	found := tries()
	harness.Eventually(t, "it goes on trying", func() (bool, string) {
		routes, err := cluster.Run("ip", "-4", "route")
		if err != nil || strings.Contains(routes, "/1 ") {
			t.Fatalf("the node's routes: %s, %v", routes, err)
		}
		if ready := s.k("get", "node", "node1", "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`); ready != "True" {
			t.Fatalf("node1 is Ready=%s", ready)
		}
		now := tries()
		return now >= found+6, fmt.Sprint(now, " tries")
	})
}

// TestGossipKeyRotates: nodes get the new key while they run and hear each other as
// before; who joins later has the new one alone.
func TestGossipKeyRotates(t *testing.T) {
	first := filepath.Join(cluster.Dir, "coordinator", "pki", "gossip.key")
	join := func(name string) string {
		t.Helper()
		var key string
		host, err := cluster.Host(name, func(a *harness.Agent, c *agentconfig.Config) {
			key = filepath.Join(a.Dir, "gossip.key") // another machine has a file of its own
			c.GossipKeyFile = key
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := host.Stop(); err != nil {
				t.Error(err)
			}
			cluster.Must(t, "delete", "node", name)
		})
		if err := os.WriteFile(key, []byte(keys(t, first)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "gossip tells node1 the way to the pods of "+name, func() (bool, string) {
			routes, err := cluster.Run("ip", "-4", "route")
			return err == nil && strings.Contains(routes, "via "+host.Address+" "), fmt.Sprint(routes, err)
		})
		return key
	}
	second := join("early")
	before := keys(t, first)
	out, err := cluster.Run(filepath.Join(cluster.Bin, "shoal"), "gossip", "rotate", "--data-dir", cluster.Dir)
	if err != nil || !strings.Contains(out, "the new key is the only one") {
		t.Fatal(out, err)
	}
	after := keys(t, first)
	if after == before || strings.Count(after, "\n") != 1 || keys(t, second) != after {
		t.Errorf("the coordinator's file has %d keys, and %v the old one; the node's differs: %v",
			strings.Count(after, "\n"), strings.Contains(after, before), keys(t, second) != after)
	}
	join("late")
}

// keys are the lines of a key file that are no comments.
func keys(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var keys strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			keys.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return keys.String()
}

// triesToJoin is what the rogue says each time.
const triesToJoin = "tries to join\n"

// rogue joins as memberlist's own member with its own idea of metadata, and as
// one of ours with a grant of its own authority.
func rogue(args []string) error {
	address, file, join := args[0], args[1], args[2:]
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	for i, name := range []string{"liar", "node1"} {
		c := memberlist.DefaultLANConfig()
		c.Name, c.SecretKey, c.AdvertiseAddr, c.Delegate = name, key, address, oldWords(address)
		c.BindPort, c.AdvertisePort = 8000+i, 8000+i
		c.Logger = log.New(io.Discard, "", 0)
		m, err := memberlist.Create(c)
		if err != nil {
			return err
		}
		go func() {
			for {
				_, _ = m.Join(join)
				fmt.Print(triesToJoin)
				time.Sleep(time.Second / 2) // it does not hurry: nobody is to notice
			}
		}()
	}
	g, err := impostor("node1", address, file, join)
	if err != nil {
		return err
	}
	fmt.Println("rogue tries")
	return g.Run(context.Background())
}

func impostor(name, address, file string, join []string) (*gossip.Group, error) {
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.Public(), ca)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	id, err := gossip.NewIdentity()
	if err != nil {
		return nil, err
	}
	grant, err := gossip.Grant{Role: gossip.RoleAgent, Key: id.PublicKey(), Issued: time.Now(),
		Expires:  time.Now().Add(time.Hour),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/1")},
		NodeIPs:  []netip.Addr{netip.MustParseAddr(address)}}.Sign(name, ca)
	if err != nil {
		return nil, err
	}
	keys, err := gossip.LoadKeyring(file)
	if err != nil {
		return nil, err
	}
	return gossip.New(
		gossip.Config{Name: name, AdvertiseAddr: address, Join: join, Keys: keys, Trust: gossip.Trust{cert},
			Identity: id, Grant: grant})
}

// oldWords is metadata as members had it before they signed: an agent with the
// pods of half the world.
type oldWords string

func (w oldWords) NodeMeta(int) []byte {
	prefix, _ := netip.MustParsePrefix("0.0.0.0/1").MarshalBinary()
	b := append([]byte{1, 1, 5}, "agent"...)
	b = append(append(b, 2, byte(len(prefix))), prefix...)
	return append(append(b, 3, 4), netip.MustParseAddr(string(w)).AsSlice()...)
}

func (oldWords) NotifyMsg([]byte)                {}
func (oldWords) GetBroadcasts(int, int) [][]byte { return nil }
func (oldWords) LocalState(bool) []byte          { return nil }
func (oldWords) MergeRemoteState([]byte, bool)   {}
