package proxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Tracking is how the kernel remembers flows (nf_conntrack-sysctl); zero leaves what it has.
type Tracking struct {
	// Flows are how many it remembers at least; one more is dropped when there are as many.
	Flows int
	// Established is the time-out of a TCP flow on which nothing is sent, CloseWait that of
	// one which one side has closed, UDP that of a packet, UDPStream that of packets both ways.
	Established, CloseWait, UDP, UDPStream time.Duration
	// Liberal takes packets of TCP as of their flow that are out of its window.
	Liberal bool
}

// Where the kernel's settings are.
const (
	netfilterDir  = "/proc/sys/net/netfilter"
	bucketsOfHash = "/sys/module/nf_conntrack/parameters/hashsize"
)

// set gives the kernel the settings. It has them once a rule looks at flows.
func (t Tracking) set() error { return t.setIn(netfilterDir, bucketsOfHash) }

func (t Tracking) setIn(dir, buckets string) error {
	var errs []error
	for name, d := range map[string]time.Duration{
		"tcp_timeout_established": t.Established, "tcp_timeout_close_wait": t.CloseWait,
		"udp_timeout": t.UDP, "udp_timeout_stream": t.UDPStream,
	} {
		if d > 0 {
			errs = append(errs, setting(filepath.Join(dir, "nf_conntrack_"+name), int(d/time.Second), false))
		}
	}
	if t.Liberal {
		errs = append(errs, setting(filepath.Join(dir, "nf_conntrack_tcp_be_liberal"), 1, false))
	}
	most := filepath.Join(dir, "nf_conntrack_max")
	// What an administrator or the kernel of a large machine has beyond that stays, unlike
	// with kube-proxy.
	if has, err := number(most); t.Flows > 0 && (err != nil || has < t.Flows) {
		errs = append(errs, setting(most, t.Flows, true), setting(buckets, t.Flows/4, true)) // as kube-proxy
	}
	return errors.Join(errs...)
}

// setting writes a number that is not there yet, or, to raise it, one that is less.
func setting(file string, want int, raise bool) error {
	old, err := number(file)
	if err == nil && old != want && (!raise || old < want) {
		err = os.WriteFile(file, []byte(strconv.Itoa(want)), 0o644)
	}
	if err != nil {
		return fmt.Errorf("set how flows are remembered: %w", err)
	}
	return nil
}

func number(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
