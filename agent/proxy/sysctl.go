package proxy

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Timeouts are how long the kernel remembers flows; zero leaves its own.
type Timeouts struct {
	// Established is that of a TCP flow on which nothing is sent, CloseWait that of
	// one which one side has closed.
	Established, CloseWait time.Duration
}

// set gives the kernel the time-outs. It has them once a rule looks at flows.
func (t Timeouts) set() error {
	for name, d := range map[string]time.Duration{
		"established": t.Established, "close_wait": t.CloseWait,
	} {
		if d <= 0 {
			continue
		}
		file := filepath.Join("/proc/sys/net/netfilter", "nf_conntrack_tcp_timeout_"+name)
		want := strconv.FormatInt(int64(d/time.Second), 10)
		old, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(old)) == want {
			continue
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			return fmt.Errorf("set the time-out of TCP flows: %w", err)
		}
	}
	return nil
}
