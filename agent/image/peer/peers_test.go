package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
)

// TestBansEnd: a node that was not reached is asked again after a time.
func TestBansEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := lonely()
		p.ban("a", time.Minute)
		p.ban("a", time.Second) // the longer one holds
		time.Sleep(30 * time.Second)
		if got := p.bans(); len(got) != 1 || !p.poor("a") {
			t.Errorf("%v are not asked", got)
		}
		time.Sleep(2 * time.Minute)
		if got := p.bans(); len(got) != 0 || p.poor("a") {
			t.Errorf("%v are still not asked", got)
		}
	})
}

// oneImage is a store of an image.
type oneImage struct{ noStore }

func (oneImage) Manifests(context.Context) ([][]byte, error) {
	return [][]byte{[]byte(`{"layers": [{"digest": "` + digest.FromString("x").String() + `", "size": 1000000}]}`)}, nil
}

// TestTellsAgain: while the members stay, a keeper is told again what this node has before it
// ceases to believe it, and not at each look; what is too old is forgotten without a pull.
func TestTellsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Time
		p := lonely()
		p.cfg.Store, p.cfg.Log = oneImage{}, slog.New(slog.DiscardHandler)
		p.cfg.Name = "" // neither of the members is this node: it keeps nothing
		p.cfg.Ask = func(context.Context, string, []byte) ([]byte, error) {
			told = append(told, time.Now())
			return []byte("{}"), nil
		}
		p.ban("b", time.Minute)
		p.mute["b"] = muteness{muteAsks, time.Now()}
		p.book.Have(Source{"b", 1}, []Key{{1}}, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.Run(ctx)
		}()
		time.Sleep(2 * forgetEvery)
		p.mu.Lock()
		if len(p.banned)+len(p.mute) > 0 {
			t.Errorf("after %v %v and %v are known", 2*forgetEvery, p.banned, p.mute)
		}
		p.mu.Unlock()
		time.Sleep(2 * believed)
		cancel()
		<-ended
		if len(told) < 8 || len(told) > 10 {
			t.Errorf("in two days the keeper is told %d times", len(told))
		}
		for i := 1; i < len(told); i++ {
			if pause := told[i].Sub(told[i-1]); pause > believed/2 {
				t.Errorf("it is told nothing for %v", pause)
			}
		}
		if len(p.book.layers) > 0 {
			t.Errorf("the book has %d layers that nobody has said again", len(p.book.layers))
		}
	})
}

// TestPace: a node that sends too little of what it is asked for is not asked for a time; one
// that is not asked for anything, or by an agent that stands still itself, is not to blame.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		name   string
		bytes  int           // that come each second
		look   time.Duration // how often it is looked at
		asked  time.Duration // of each second
		poorer time.Duration // from when on it is not asked; 0: it is all the time
	}{
		{"nothing", 0, time.Second, time.Second, 5 * time.Second},
		{"little", 10 << 10, time.Second, time.Second, 5 * time.Second},
		{"enough", 1 << 20, time.Second, time.Second, 0},
		{"seldom_asked", 0, time.Second, 500 * time.Millisecond, 10 * time.Second},
		{"not_asked", 0, time.Second, 0, 0},
		{"the_agent_stands_still", 0, 5 * time.Second, time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, from, looked := lonely(), time.Now(), time.Now()
				p.cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
				p.arrived("n", 0)
				for range 30 {
					if c.asked > 0 {
						p.asking("n")
						time.Sleep(c.asked)
					}
					p.arrived("n", c.bytes)
					if time.Since(looked) >= c.look {
						looked = time.Now()
						if p.poor("n") {
							break
						}
					}
					if c.asked > 0 {
						p.answered("n")
					}
					time.Sleep(time.Second - c.asked)
				}
				took, bans := time.Since(from).Round(time.Second), p.bans()
				if c.poorer > 0 && took != c.poorer || len(bans) > 0 != (c.poorer > 0) {
					t.Errorf("after %v %v are not asked", took, bans)
				}
			})
		})
	}
}

// stuckStore looks for manifests as long as nobody ends it.
type stuckStore struct {
	noStore
	end chan struct{}
}

func (s stuckStore) Manifest(context.Context, digest.Digest) ([]byte, error) {
	<-s.end
	return nil, errNone
}

// TestOneTakerLeavesPlaces: a node that holds as many requests as it may leaves some to others.
func TestOneTakerLeavesPlaces(t *testing.T) {
	p, end := lonely(), make(chan struct{})
	p.cfg.Store = stuckStore{end: end}
	name := digest.FromString("x").String()
	ask := func(node string) int {
		r := httptest.NewRequest(http.MethodGet, "/?"+manifestParameter+"="+name, nil)
		r.SetPathValue("digest", name)
		r.Header.Set("Range", "bytes=0-9")
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: node}}}}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w.Code
	}
	answers := make(chan int, 2*maxGiving)
	var asked sync.WaitGroup
	for range maxGiving + 10 {
		asked.Go(func() { answers <- ask("greedy") })
	}
	for range maxGiving + 10 - maxGivingOne {
		select {
		case code := <-answers:
			if code != http.StatusServiceUnavailable {
				t.Errorf("the greedy one got %d", code)
			}
		case <-time.After(10 * time.Second):
			close(end)
			t.Fatal("the greedy one has more places than it may")
		}
	}
	asked.Go(func() { answers <- ask("other") })
	select {
	case code := <-answers:
		t.Errorf("another got %d", code)
	case <-time.After(100 * time.Millisecond): // it is being answered
	}
	close(end)
	asked.Wait()
	if len(p.giving) != 0 || p.givingAll != 0 {
		t.Errorf("%v, %d are left", p.giving, p.givingAll)
	}
}
