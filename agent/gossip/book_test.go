package gossip

import (
	"net"
	"sync"
	"testing"

	"github.com/hashicorp/memberlist"
)

// What memberlist tells and the book's tidying take each other's locks in turn; in
// the wrong order they stop the member for good.
func TestTidyingDoesNotStopTheMember(t *testing.T) {
	g, err := New(Config{Name: "a", BindAddr: "127.0.0.1", BindPort: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for i := range byte(200) {
		g.book.byName[string([]byte{'b', i})] = &peer{name: string([]byte{'b', i})}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 2000 {
			g.tidy()
		}
	})
	wg.Go(func() {
		for i := range 20000 {
			g.observe(&memberlist.Node{Name: string([]byte{'b', byte(i % 200)}), Addr: net.IPv4(192, 0, 2, 1)}, i%2 == 0)
		}
	})
	wg.Wait() // for ever with a deadlock: the test's time-out shows who waits for what
}
