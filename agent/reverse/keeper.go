package reverse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Coordinator is one as the gossip knows it.
type Coordinator struct {
	Name    string
	Address string // host:port of its API
	Up      bool
	Since   time.Time // when it came, came back, or died
}

// Keeper keeps the connections of a node.
type Keeper struct {
	// Coordinators are those of now; Changed tells that they may be others.
	Coordinators func() []Coordinator
	Changed      <-chan struct{}
	// Hidden asks a coordinator whether it sees this node at none of the node's addresses.
	Hidden func(context.Context, Coordinator) (bool, error)
	// Dial connects to a coordinator by TLS, and shows it the node's certificate.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// To takes what comes through; Port is that of the kubelet's API, the only one.
	To   *Listener
	Port int
	Log  *slog.Logger
}

// How long until a coordinator is tried again. One that comes back is tried at once.
const (
	retryLeast = 500 * time.Millisecond
	retryMost  = 30 * time.Second
	// steady is how long a connection must last so that its end is no failure.
	steady = time.Minute
	// lookAgain is how often a coordinator that sees the node as it is gets asked again: a
	// router between may begin to translate.
	lookAgain = 10 * time.Minute
	// crowd is the time in which the nodes of a cluster turn to a coordinator that came.
	crowd = 2 * time.Second
)

const (
	greetTime = 10 * time.Second
	// maxAnswer bounds the answer to the greeting.
	maxAnswer = 16 << 10
	// pingAfter is how long the other side may say nothing until it is asked for a sign of
	// life, pingTime how long that may take. Routers forget a connection after minutes.
	pingAfter = 15 * time.Second
	pingTime  = 10 * time.Second
)

// holder keeps the connection to one coordinator.
type holder struct {
	cancel context.CancelFunc
	of     Coordinator   // as the gossip has it now
	woken  chan struct{} // it came, or came back
}

// Run keeps a connection to each coordinator that does not see the node as it is, until ctx
// ends. One that the gossip calls dead keeps its connection if that lives, and gets no other.
func (k *Keeper) Run(ctx context.Context) error {
	held := map[string]*holder{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		there := map[string]bool{}
		for _, c := range k.Coordinators() {
			id := c.Name + " " + c.Address
			there[id] = true
			mu.Lock()
			h := held[id]
			if h == nil {
				one, cancel := context.WithCancel(ctx)
				h = &holder{cancel: cancel, woken: make(chan struct{}, 1)}
				held[id] = h
				h.of = c
				wg.Go(func() {
					k.keep(one, h, func() Coordinator { mu.Lock(); defer mu.Unlock(); return h.of })
				})
			}
			back := c.Up && (!h.of.Up || !h.of.Since.Equal(c.Since))
			h.of = c
			mu.Unlock()
			if back {
				select {
				case h.woken <- struct{}{}:
				default:
				}
			}
		}
		for id, h := range held {
			if !there[id] {
				h.cancel()
				delete(held, id)
			}
		}
		select {
		case <-ctx.Done():
			for _, h := range held {
				h.cancel()
			}
			return nil
		case <-k.Changed:
		}
	}
}

// keep stays connected to one coordinator as long as that is needed.
func (k *Keeper) keep(ctx context.Context, h *holder, now func() Coordinator) {
	delay, told := time.Duration(0), false
	h.wait(ctx, rand.N(crowd))
	for ctx.Err() == nil {
		c := now()
		if !c.Up {
			select {
			case <-ctx.Done():
			case <-h.woken:
				delay = 0
			}
			continue
		}
		begun := time.Now()
		hidden, err := k.Hidden(ctx, c)
		switch {
		case err != nil: // it may see the node as it is
			k.Log.Debug("a coordinator does not tell where it sees this node", "coordinator", c.Name, "err", err)
		case !hidden:
			delay, told = 0, false
			h.wait(ctx, lookAgain)
			continue
		default:
			err = k.connect(ctx, c)
			if ctx.Err() == nil && !told && time.Since(begun) < steady {
				told = true
				k.Log.Warn("a coordinator does not reach this node's kubelet API: it is tried again",
					"coordinator", c.Name, "err", err)
			}
		}
		if time.Since(begun) > steady {
			delay, told = 0, false
		}
		delay = min(max(2*delay, retryLeast), retryMost)
		if h.wait(ctx, delay/2+rand.N(delay)) {
			delay = 0
		}
	}
}

// wait returns after some time, or true when the coordinator came back.
func (h *holder) wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-h.woken:
		return true
	case <-time.After(d):
	}
	return false
}

// connect serves a coordinator until the connection ends.
func (k *Keeper) connect(ctx context.Context, c Coordinator) error {
	raw, err := k.Dial(ctx, c.Address)
	if err != nil {
		return err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn, err := greet(raw, c.Address)
	if err != nil {
		return err
	}
	k.Log.Info("a coordinator sees this node behind address translation, and reaches its kubelet API "+
		"through a connection that the node keeps", "coordinator", c.Name)
	server := http2.Server{MaxConcurrentStreams: MaxStreams, ReadIdleTimeout: pingAfter, PingTimeout: pingTime}
	server.ServeConn(conn, &http2.ServeConnOpts{
		Context: ctx,
		BaseConfig: &http.Server{
			ErrorLog:       slog.NewLogLogger(k.Log.Handler(), slog.LevelDebug),
			MaxHeaderBytes: 4 << 10,
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { k.stream(w, r, raw) }),
	})
	return errors.New("the connection has ended")
}

// read is a connection whose first bytes were read already.
type read struct {
	net.Conn
	from io.Reader
}

func (r read) Read(p []byte) (int, error) { return r.from.Read(p) }

// greet has the coordinator change the protocol.
func greet(c net.Conn, address string) (net.Conn, error) {
	if err := c.SetDeadline(time.Now().Add(greetTime)); err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodGet, "https://"+address+Path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	if err := req.Write(c); err != nil {
		return nil, err
	}
	// One reader for the answer and what follows it: bytes of the new protocol may be in its
	// buffer already.
	limited := &io.LimitedReader{R: c, N: maxAnswer}
	in := bufio.NewReader(limited)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, fmt.Errorf("answer to %s: %w", Path, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != Protocol {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s is answered with %s: the coordinator may be of an earlier version",
			Path, resp.Status)
	}
	limited.N = math.MaxInt64
	return read{c, in}, c.SetDeadline(time.Time{})
}

// stream makes a request of a coordinator a connection of the kubelet's server.
func (k *Keeper) stream(w http.ResponseWriter, r *http.Request, raw net.Conn) {
	if r.Method != http.MethodPost || r.URL.Path != "/"+strconv.Itoa(k.Port) {
		http.Error(w, fmt.Sprintf("only POST /%d, the port of the kubelet's API", k.Port), http.StatusNotFound)
		return
	}
	ours, theirs := net.Pipe()
	if !k.To.hand(Conn{theirs, raw.LocalAddr(), raw.RemoteAddr()}, r.Context().Done()) {
		_ = errors.Join(ours.Close(), theirs.Close())
		http.Error(w, "the kubelet's API is not served", http.StatusServiceUnavailable)
		return
	}
	out := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		_ = ours.Close()
		return
	}
	Join(ours, r.Body, w, out.Flush)
}
