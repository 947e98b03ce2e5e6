package gossip

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestViewTellsStatesAndRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a := f.start(0)
		f.start(1)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 2 })
		time.Sleep(5 * time.Second) // some probes, each answered in no time
		a.mu.Lock()
		_, measured := a.trips["m1"]
		a.mu.Unlock()
		v := a.View()
		if !measured || len(v) != 2 || !v[0].Local || v[1].Local || v[1].State != StateAlive ||
			v[1].Addr != "10.0.0.2:7946" || v[1].Role != RoleAgent || v[1].Zone != "m1" {
			t.Errorf("%+v, round trip %v", v, measured)
		}
		f.stop["m1"]()
		f.wait("death", 12*time.Second, func() bool { return a.View()[1].State == StateDead })
		a.mu.Lock()
		defer a.mu.Unlock()
		if trip, ok := a.trips["m1"]; ok {
			t.Errorf("the dead still has a round trip of %v", trip)
		}
	})
}

// The socket takes the place of one that was left, is root's alone, and shows
// nothing but the view.
func TestViewSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), ViewSocket)
	if err := os.WriteFile(socket, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	g, err := New(Config{Name: "a", BindAddr: "127.0.0.1", BindPort: -1, Meta: Meta{Role: RoleAgent}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if err := g.ServeView(ctx, socket); err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		info, err := os.Stat(socket)
		if err == nil && info.Mode() == os.ModeSocket|0o600 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v %v", info, err)
		}
	}
	resp, err := client.Get("http://agent" + MembersPath)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list []View
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list) != 1 || list[0].Name != "a" {
		t.Errorf("%+v %v", list, err)
	}
	other, err := client.Get("http://agent/")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Body.Close()
	if other.StatusCode != http.StatusNotFound {
		t.Error(other.Status)
	}
}
