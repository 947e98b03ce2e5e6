package withdraw

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

var web = service.Key{Namespace: "shop", Name: "web"}

func endpoint(addr string) service.EndpointOf {
	return service.EndpointOf{Service: web, Addr: netip.MustParseAddrPort(addr)}
}

// leading are tables by which new connections go to addresses; with a "-" before the first
// they go there for want of others.
func leading(addrs string) *service.Tables {
	route := service.Route{}
	addrs, route.Last = strings.CutPrefix(addrs, "-")
	for _, a := range strings.Fields(addrs) {
		route.Backends = append(route.Backends, service.Backend{AddrPort: netip.MustParseAddrPort(a)})
	}
	return service.NewTables(&service.Service{Key: web,
		Ports: []service.Port{{Protocol: "TCP", Number: 80, Cluster: route, Internal: route, External: route}}})
}

func TestQuestions(t *testing.T) {
	var many []service.EndpointOf
	for i := range 300 {
		many = append(many, service.EndpointOf{
			Service: service.Key{Namespace: "n", Name: fmt.Sprint("s", i)},
			Addr:    netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), uint16(i)),
		})
	}
	many[0] = endpoint("10.244.1.3:8080")
	many[1].Service = service.Key{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 253)}
	var got []service.EndpointOf
	questions := 0
	for rest := many; len(rest) > 0; questions++ {
		var q []byte
		q, rest = ask(rest)
		if len(q) > maxQuestion {
			t.Errorf("question of %d bytes", len(q))
		}
		part, err := parse(q)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, part...)
	}
	if !slices.Equal(got, many) || questions != 2 {
		t.Errorf("%d questions told of %d endpoints, want 2 of %d", questions, len(got), len(many))
	}
	for _, bad := range []string{
		"", "E", "L\x01", "E\x02", "E\x01\x05abc", "E\x01\x01a\x01b", "E\x01\xff" + strings.Repeat("x", 300),
	} {
		if list, err := parse([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, list)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	q, _ := ask([]service.EndpointOf{endpoint("10.0.0.1:1"), endpoint("[2001:db8::1]:65535")})
	f.Add(q)
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parse(b)
		if err != nil {
			return
		}
		again, rest := ask(list)
		if back, err := parse(again); err != nil || rest != nil || !slices.Equal(back, list) {
			t.Errorf("%v became %v, %v left, %v", list, back, rest, err)
		}
	})
}

// fleet are nodes that ask each other.
type fleet struct {
	mu    sync.Mutex
	nodes map[string]*Manager
	dead  map[string]bool // does not answer
	asked int
}

func (f *fleet) add(name string) *Manager {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := New(Config{
		Members: func() (out []string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for other := range f.nodes {
				if other != name {
					out = append(out, other)
				}
			}
			return out
		},
		Ask: func(ctx context.Context, member string, q []byte) ([]byte, error) {
			f.mu.Lock()
			f.asked++
			to, dead := f.nodes[member], f.dead[member]
			f.mu.Unlock()
			if dead {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if a := to.Answer(q); a != nil {
				return a, nil
			}
			return nil, errors.New("refused")
		},
	})
	f.nodes[name] = m
	return m
}

// questions is how many were asked.
func (f *fleet) questions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func TestWait(t *testing.T) {
	const one, two = "10.244.1.3:80", "10.244.2.3:80"
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{nodes: map[string]*Manager{}, dead: map[string]bool{}}
		own, a, b := f.add("own"), f.add("a"), f.add("b")
		for _, m := range []*Manager{own, a, b} {
			m.Programmed(Kernel, leading(one+" "+two))
		}
		var ended time.Duration
		began := time.Now()
		waits := func(bound time.Duration) chan error {
			done := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				err := own.Wait(ctx, []service.EndpointOf{endpoint(one)})
				ended = time.Since(began)
				done <- err
			}()
			return done
		}
		done := waits(time.Minute)
		time.Sleep(time.Second)
		if f.questions() != 0 {
			t.Error("others were asked while this node itself leads traffic there")
		}
		own.Programmed(Kernel, leading(two))
		a.Programmed(Kernel, leading(two))
		time.Sleep(time.Second)
		if len(done) != 0 {
			t.Fatal("it ended while a node led traffic there")
		}
		if f.questions() > 2+10 {
			t.Errorf("%d questions in a second", f.questions())
		}
		b.Programmed(Gateways, leading(one+" "+two))
		b.Programmed(Kernel, leading(two))
		time.Sleep(time.Second)
		if len(done) != 0 {
			t.Fatal("it ended while a node's proxy of Gateways led requests there")
		}
		b.Unknown(Gateways)
		time.Sleep(time.Second)
		if len(done) != 0 {
			t.Fatal("it ended while nobody knows what a node's proxy of Gateways has")
		}
		b.Programmed(Gateways, nil)
		if err := <-done; err != nil || ended > 4*time.Second+maxPause {
			t.Errorf("ended with %v after %s", err, ended)
		}

		// A node that died is asked until it counts as dead.
		f.mu.Lock()
		f.dead["b"] = true
		f.mu.Unlock()
		done = waits(time.Minute)
		time.Sleep(3 * time.Second)
		if len(done) != 0 {
			t.Fatal("it did not wait for a node that is silent")
		}
		f.mu.Lock()
		delete(f.nodes, "b")
		f.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}

		// Whoever restarts knows nothing of what its kernel has; the bound ends that.
		f.add("c")
		if err := <-waits(2 * time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v before its bound", err)
		}
		f.nodes["c"].Programmed(Kernel, leading("-"+one)) // for want of others
		if err := <-waits(2 * time.Second); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.asked = 0
		f.mu.Unlock()
		synctest.Wait()
		time.Sleep(time.Hour)
		if f.questions() != 0 {
			t.Errorf("%d questions when nobody waits", f.questions())
		}
	})
}

// Many that end at once are one question a node.
func TestWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{nodes: map[string]*Manager{}, dead: map[string]bool{}}
		own := f.add("own")
		for i := range 40 {
			f.add(fmt.Sprint("n", i)).Programmed(Kernel, leading("10.0.0.1:80"))
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				_ = own.Wait(t.Context(), []service.EndpointOf{endpoint(fmt.Sprintf("10.0.1.%d:80", i))})
			})
		}
		synctest.Wait()
		own.Programmed(Kernel, leading("10.0.0.1:80"))
		wg.Wait()
		if f.questions() > 80 {
			t.Errorf("%d questions of 40 nodes", f.questions())
		}
	})
}

func TestBound(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 5 * time.Second, "0s": 0, "0": 0, "12s": 12 * time.Second, "soon": 5 * time.Second, "-1s": 5 * time.Second,
	} {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{WaitAnnotation: value}
		if got := Bound(p, 5*time.Second); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}
