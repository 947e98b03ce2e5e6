package proxy

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTracking: time-outs are set to what they shall be, numbers are only raised.
func TestTracking(t *testing.T) {
	before := map[string]string{
		"nf_conntrack_max": "65536\n", "hashsize": "65536\n", "nf_conntrack_tcp_be_liberal": "0\n",
		"nf_conntrack_tcp_timeout_established": "432000\n", "nf_conntrack_tcp_timeout_close_wait": "60\n",
		"nf_conntrack_udp_timeout": "30\n", "nf_conntrack_udp_timeout_stream": "120\n",
	}
	for name, c := range map[string]struct {
		set     Tracking
		changed map[string]string
	}{
		"nothing": {Tracking{}, nil},
		"more flows, with the buckets that there are": {Tracking{Flows: 131072},
			map[string]string{"nf_conntrack_max": "131072"}},
		"more flows and buckets": {Tracking{Flows: 1 << 20},
			map[string]string{"nf_conntrack_max": "1048576", "hashsize": "262144"}},
		"fewer flows than there are": {Tracking{Flows: 1000}, nil},
		"times": {
			Tracking{Established: 24 * time.Hour, CloseWait: time.Hour, UDP: 10 * time.Second, UDPStream: time.Minute},
			map[string]string{"nf_conntrack_tcp_timeout_established": "86400", "nf_conntrack_tcp_timeout_close_wait": "3600",
				"nf_conntrack_udp_timeout": "10", "nf_conntrack_udp_timeout_stream": "60"},
		},
		"liberal": {Tracking{Liberal: true}, map[string]string{"nf_conntrack_tcp_be_liberal": "1"}},
	} {
		dir, want := t.TempDir(), maps.Clone(before)
		for file, text := range before {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		maps.Copy(want, c.changed)
		if err := c.set.setIn(dir, filepath.Join(dir, "hashsize")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for file, text := range want {
			if got, _ := os.ReadFile(filepath.Join(dir, file)); string(got) != text {
				t.Errorf("%s: %s is %q, want %q", name, file, got, text)
			}
		}
	}
	// In a container there may be no parameters of modules.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nf_conntrack_max"), []byte("262144\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Tracking{Flows: 131072}).setIn(dir, filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
	err := Tracking{Flows: 1, UDP: time.Second}.setIn(t.TempDir(), "/none")
	if err == nil || !strings.Contains(err.Error(), "nf_conntrack_max") || !strings.Contains(err.Error(), "udp_timeout") {
		t.Errorf("where nothing is there: %v", err)
	}
}
