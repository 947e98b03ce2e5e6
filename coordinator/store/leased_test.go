package store

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// outside starts an etcd that clients connect to, whose leases may be as short as
// a second, and returns its URL.
func outside(t *testing.T) string {
	t.Helper()
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = anyPort, anyPort
	c.EnableGRPCGateway = false
	joinAlone(c)
	c.TickMs, c.ElectionMs = 10, 100
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return "http://" + e.Clients[0].Addr().String()
}

// A name that is given up goes at once, that of a process that dies within the
// time to live, and who follows is told of both; keeping a lease alive writes
// nothing.
func TestLeasedNames(t *testing.T) {
	server := outside(t)
	open := func() *Store {
		s, err := Open(t.Context(), Config{Servers: []string{server}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const ttl = time.Second
	one, other := open(), open()
	defer one.Close()
	set := one.Leased("names", ttl)
	var told atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	go func() { ended <- set.Follow(ctx, func() { told.Add(1) }) }()
	soon(t, "it follows", func() bool { return told.Load() == 1 })
	brief, giveUp := context.WithCancel(ctx)
	go func() { ended <- set.Hold(brief, "brief") }()
	go func() { ended <- other.Leased("names", ttl).Hold(context.Background(), "dying") }()
	names := func(want ...string) func() bool {
		return func() bool {
			got, err := set.List(t.Context())
			return err == nil && slices.Equal(got, want)
		}
	}
	soon(t, "both hold their names", names("brief", "dying"))
	revision := func() int64 {
		r, err := one.client.Client.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	before := revision()
	time.Sleep(2 * ttl)
	if !names("brief", "dying")() || revision() != before {
		t.Errorf("after twice the time to live: revision %d, was %d", revision(), before)
	}

	giveUp()
	soon(t, "a name is given up", names("dying"))
	if err := <-ended; err != nil {
		t.Error(err)
	}
	died := time.Now()
	_ = other.Close() // which gives up nothing
	if !names("dying")() {
		t.Error("the name of who died went at once")
	}
	soon(t, "a name has no holder", names())
	if after := time.Since(died); after > 3*ttl { // etcd looks twice a second
		t.Errorf("it went after %s", after)
	}
	if err := <-ended; err == nil {
		t.Error("a holder that lost its store is not told")
	}
	soon(t, "who follows is told", func() bool { return told.Load() == 5 }) // begin, two come, two go
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("not so: %s", what)
}
