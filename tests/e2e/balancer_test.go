package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/arp"

	"github.com/shoal-project/shoal/tests/harness"
)

// balanced is a server on each node that says who asks, behind an address of a pool.
const balanced = `
apiVersion: v1
kind: ConfigMap
metadata: {name: shoal-load-balancer, namespace: kube-system}
data:
  lan: |
    addresses: [10.99.0.100-10.99.0.110]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      tolerations: [{operator: Exists}]
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sh, -c, 'mkdir -p /w/cgi-bin; printf "#!/bin/sh\necho; echo \$REMOTE_ADDR\n" > /w/cgi-bin/who; chmod +x /w/cgi-bin/who; exec httpd -f -p 8080 -h /w']
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`

// arpWatch asks a network for an address, again and again, and keeps who answers.
type arpWatch struct {
	client *arp.Client
	addr   netip.Addr
	stop   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	last    string    // MAC that answered last
	at      time.Time // when
	rounds  int
	doubled []string // rounds in which two machines answered
	row     int      // rounds of these one after the other
	longest int
}

const (
	askEvery = 50 * time.Millisecond
	// claimEvery is how often an owner claims its address: two may be owners for so long.
	claimEvery = 300 * time.Millisecond
)

func newARPWatch(t *testing.T, netns string, addr netip.Addr) *arpWatch {
	t.Helper()
	a := &arpWatch{addr: addr, stop: make(chan struct{})}
	err := harness.Inside(netns, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		a.client, err = arp.Dial(ifi)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	a.wg.Go(a.run)
	t.Cleanup(func() {
		close(a.stop)
		a.wg.Wait()
		_ = a.client.Close()
	})
	return a
}

func (a *arpWatch) run() {
	for {
		select {
		case <-a.stop:
			return
		default:
		}
		a.round()
	}
}

// round asks once, and takes the answers that come before the next.
func (a *arpWatch) round() {
	begin := time.Now()
	_ = a.client.Request(a.addr)
	_ = a.client.SetReadDeadline(begin.Add(askEvery))
	var who []string
	for time.Since(begin) < askEvery {
		p, _, err := a.client.Read()
		if err != nil {
			break
		}
		// Claims are no answers; all the same who claims says that it is there.
		if p.SenderIP == a.addr && !slices.Contains(who, p.SenderHardwareAddr.String()) {
			who = append(who, p.SenderHardwareAddr.String())
		}
	}
	time.Sleep(time.Until(begin.Add(askEvery)))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rounds++
	a.row++
	if len(who) <= 1 {
		a.row = 0
	}
	a.longest = max(a.longest, a.row)
	if len(who) > 1 {
		a.doubled = append(a.doubled, fmt.Sprintf("round %d: %v", a.rounds, who))
	}
	if len(who) > 0 {
		a.last, a.at = who[len(who)-1], time.Now()
	}
}

// owner is who answered last, if that was lately.
func (a *arpWatch) owner() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) > 4*askEvery {
		return ""
	}
	return a.last
}

// settled waits until one machine has answered for a while.
func (a *arpWatch) settled(t *testing.T) (owner string) {
	t.Helper()
	since := time.Now()
	harness.Eventually(t, "one machine answers", func() (bool, string) {
		if now := a.owner(); now != owner || now == "" {
			since, owner = time.Now(), now
		}
		return time.Since(since) > 3*time.Second, owner
	})
	return owner
}

// twice tells in how many rounds two answered, and in how many one after the other.
func (a *arpWatch) twice() (rounds int, doubled []string, longest int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rounds, slices.Clone(a.doubled), a.longest
}

// macOf is the MAC of a host's interface.
func macOf(t *testing.T, netns string) (mac string) {
	t.Helper()
	err := harness.Inside(netns, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = ifi.HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// asksAt gets a page by a new connection from a host.
func asksAt(netns, address string, limit time.Duration) (body string, err error) {
	err = harness.Inside(netns, func() error {
		conn, err := net.DialTimeout("tcp", address+":80", limit)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(limit))
		if _, err := io.WriteString(conn, "GET /cgi-bin/who HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(conn, 4096))
		if err != nil {
			return err
		}
		head, rest, _ := strings.Cut(string(b), "\n\n")
		if !strings.Contains(head, fmt.Sprint(http.StatusOK)) {
			return errors.New(head)
		}
		body = strings.TrimPrefix(strings.Trim(strings.TrimSpace(rest), "[]"), "::ffff:")
		return nil
	})
	return body, err
}

// TestLoadBalancer: an address of a pool is answered by one node that has a backend, which
// sees the client's own address. A power cut of that node moves it in less than 3 s, an
// agent that restarts does not, and no two nodes answer. With SHOAL_FAILOVERS=N there are N
// power cuts.
func TestLoadBalancer(t *testing.T) {
	// Beside other tests a node may stand still for moments, in which it neither claims nor
	// yields: what counts is measured with nothing beside, by SHOAL_FAILOVERS.
	failovers, both, latest := 3, 4*claimEvery, 10*time.Second
	if n := os.Getenv("SHOAL_FAILOVERS"); n != "" {
		var err error
		if failovers, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
		both, latest = claimEvery, 3*time.Second
	}
	c := ownCluster(t, "lb")
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	nodes := map[string]*harness.Agent{} // by MAC
	for _, name := range []string{"node2", "node3", "node4"} {
		a, err := c.Join(name)
		if err != nil {
			t.Fatal(err)
		}
		nodes[macOf(t, a.NetNS)] = a
	}
	for _, n := range []string{"node1", "node2", "node3", "node4"} {
		harness.Eventually(t, "node "+n, func() (bool, string) {
			out, err := c.Kubectl("", "get", "node", n)
			return err == nil, out
		})
	}
	c.Must(t, "label", "node", "node1", "node.kubernetes.io/exclude-from-external-load-balancers=")
	c.MustWith(t, balanced, "apply", "-f", "-")
	c.Must(t, "rollout", "status", "daemonset/web", "--timeout=90s")
	address := c.Must(t, "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
	if address != "10.99.0.100" {
		t.Fatalf("address %s", address)
	}
	outside, own, err := c.Outside()
	if err != nil {
		t.Fatal(err)
	}
	watch := newARPWatch(t, outside, netip.MustParseAddr(address))
	settled := func() string {
		t.Helper()
		before := watch.settled(t)
		if nodes[before] == nil {
			t.Fatalf("%s answers, which is not to", before)
		}
		return before
	}
	owner := settled()
	harness.Eventually(t, "the backend sees the client's address", func() (bool, string) {
		got, err := asksAt(outside, address, time.Second)
		return got == own, fmt.Sprint(got, err)
	})

	t.Run("restart", func(t *testing.T) {
		if err := nodes[owner].Kill(); err != nil {
			t.Fatal(err)
		}
		away := time.Now()
		for time.Since(away) < 4*time.Second {
			if got, err := asksAt(outside, address, time.Second); got != own {
				t.Errorf("%s after the agent ended: %q, %v", time.Since(away), got, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if now := watch.owner(); now != owner {
			t.Errorf("%s answers %s after the agent of %s ended", now, time.Since(away), owner)
		}
		if err := nodes[owner].Start(); err != nil {
			t.Fatal(err)
		}
		if now := settled(); now != owner {
			t.Errorf("an agent's restart moved the address from %s to %s", owner, now)
		}
	})

	// Who may have the address no more hands it over, and who may again takes it back; there
	// is no moment in which nobody answers.
	t.Run("handover", func(t *testing.T) {
		const label = "node.kubernetes.io/exclude-from-external-load-balancers"
		for _, change := range []string{label + "=", label + "-"} {
			before := watch.owner()
			c.Must(t, "label", "node", nodes[owner].Name, change)
			begin := time.Now()
			for time.Since(begin) < 6*time.Second {
				got, err := asksAt(outside, address, time.Second)
				if err != nil { // a connection that stands when the address moves ends; the next does not
					got, err = asksAt(outside, address, time.Second)
				}
				if got != own {
					t.Errorf("%v after the label %s: %q, %v", time.Since(begin), change, got, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
			if now := watch.owner(); now == before {
				t.Errorf("%s still answers after the label %s", now, change)
			}
		}
		if now := settled(); now != owner {
			t.Errorf("%s has the address, not %s", now, owner)
		}
	})

	// With the policy Cluster nodes without a backend may announce it too.
	t.Run("cluster", func(t *testing.T) {
		c.MustWith(t, `
{apiVersion: v1, kind: Service, metadata: {name: all}, spec: {type: LoadBalancer, loadBalancerIP: 10.99.0.105,
  allocateLoadBalancerNodePorts: false, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}`, "apply", "-f", "-")
		harness.Eventually(t, "the second address is served", func() (bool, string) {
			got, err := asksAt(outside, "10.99.0.105", time.Second)
			return err == nil && got != "", fmt.Sprint(got, err)
		})
		c.Must(t, "delete", "service", "all")
		harness.Eventually(t, "it is served no more", func() (bool, string) {
			got, err := asksAt(outside, "10.99.0.105", 300*time.Millisecond)
			return err != nil, got
		})
	})

	t.Run("failovers", func(t *testing.T) {
		var answered, served []time.Duration
		for range failovers {
			owner := settled()
			node := nodes[owner]
			if err := node.Cut(); err != nil {
				t.Fatal(err)
			}
			if err := node.Kill(); err != nil {
				t.Fatal(err)
			}
			cut := time.Now()
			harness.Eventually(t, "another node answers", func() (bool, string) {
				now := watch.owner()
				return now != "" && now != owner, now
			})
			answered = append(answered, time.Since(cut))
			for {
				if got, _ := asksAt(outside, address, 300*time.Millisecond); got == own {
					break
				}
				if time.Since(cut) > 20*time.Second {
					t.Fatal("nothing is served")
				}
			}
			served = append(served, time.Since(cut))
			if err := node.Plug(); err != nil {
				t.Fatal(err)
			}
			if err := node.Start(); err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(answered)
		slices.Sort(served)
		t.Logf("%d power cuts: answered by another after %v (median) to %v, served after %v to %v", failovers,
			answered[len(answered)/2], answered[len(answered)-1], served[len(served)/2], served[len(served)-1])
		if late := served[len(served)-1]; late > latest {
			t.Errorf("a power cut moved the address in %v: %v", late, served)
		}
	})
	settled()
	rounds, doubled, longest := watch.twice()
	t.Logf("%d rounds of questions, every %v; two answers in %d, in %d one after the other", rounds, askEvery,
		len(doubled), longest)
	// A node that is back claims its address, and the other yields as soon as it hears that:
	// both are heard in one round then.
	if time.Duration(longest)*askEvery > both {
		t.Errorf("two nodes answered in %d rounds one after the other: %v", longest, doubled)
	}
}
