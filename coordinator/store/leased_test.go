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
	const ttl = 3 * time.Second // longer than a busy machine stands still
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
	time.Sleep(3 * ttl / 2)
	if !names("brief", "dying")() || revision() != before {
		t.Errorf("after more than the time to live: revision %d, was %d", revision(), before)
	}

	giveUp()
	soon(t, "a name is given up", names("dying"))
	if err := <-ended; err != nil {
		t.Error(err)
	}
	_ = other.Close()
	soon(t, "a name has no holder", names())
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
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("not so: %s", what)
}
