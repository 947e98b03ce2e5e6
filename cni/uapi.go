package cni

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// kernel is an interface of the kernel's WireGuard.
type kernel struct{ name string }

func (k kernel) read() (d *wgtypes.Device, err error) {
	err = k.with(func(c *wgctrl.Client) error { d, err = c.Device(k.name); return err })
	return d, err
}

func (k kernel) write(cfg wgtypes.Config) error {
	return k.with(func(c *wgctrl.Client) error { return c.ConfigureDevice(k.name, cfg) })
}

func (k kernel) with(do func(*wgctrl.Client) error) error {
	c, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("WireGuard of the kernel: %w", err)
	}
	defer c.Close()
	if err := do(c); err != nil {
		return fmt.Errorf("WireGuard interface %s: %w", k.name, err)
	}
	return nil
}

// uapi is the socket of a shoal-tunnel, which speaks WireGuard's cross-platform language
// (https://www.wireguard.com/xplatform/).
type uapi struct{ socket string }

// uapiTime bounds a question to shoal-tunnel.
const uapiTime = 5 * time.Second

func (u uapi) ask(question string) (lines [][2]string, err error) {
	c, err := net.DialTimeout("unix", u.socket, uapiTime)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(uapiTime)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(question + "\n")); err != nil {
		return nil, err
	}
	return readAnswer(c)
}

// maxAnswer bounds what shoal-tunnel says, in bytes: 200 or so for each peer.
const maxAnswer = 8 << 20

// readAnswer reads the fields of an answer, which ends with errno. The process speaks with
// the network, so that it is not believed more than it has to be.
func readAnswer(r io.Reader) (lines [][2]string, err error) {
	in := bufio.NewScanner(io.LimitReader(r, maxAnswer))
	for in.Scan() && in.Text() != "" {
		key, value, _ := strings.Cut(in.Text(), "=")
		if key == "errno" {
			if n, err := strconv.Atoi(value); err != nil || n != 0 { // some are told with a sign
				return nil, fmt.Errorf("shoal-tunnel refuses it: %w", syscall.Errno(max(n, -n)))
			}
			return lines, nil
		}
		lines = append(lines, [2]string{key, value})
	}
	return nil, errors.Join(errors.New("shoal-tunnel ended within its answer"), in.Err())
}

// gone returns when nobody listens at the socket any more.
func (u uapi) gone() error {
	deadline := time.Now().Add(uapiTime)
	for {
		if _, err := u.ask("get=1\n"); err != nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("shoal-tunnel does not end though its interface is gone")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (u uapi) read() (*wgtypes.Device, error) {
	lines, err := u.ask("get=1\n")
	if err != nil {
		return nil, fmt.Errorf("ask shoal-tunnel: %w", err)
	}
	return deviceOf(lines)
}

func deviceOf(lines [][2]string) (*wgtypes.Device, error) {
	d := &wgtypes.Device{}
	for _, l := range lines {
		if err := readLine(d, l[0], l[1]); err != nil {
			return nil, fmt.Errorf("answer of shoal-tunnel: field %q cannot be read", l[0]) // its value may be a key
		}
	}
	return d, nil
}

func readLine(d *wgtypes.Device, key, value string) (err error) {
	var p *wgtypes.Peer
	if len(d.Peers) > 0 {
		p = &d.Peers[len(d.Peers)-1]
	} else {
		p = &wgtypes.Peer{}
	}
	switch key {
	case "private_key":
		d.PrivateKey, err = parseHex(value)
	case "listen_port":
		d.ListenPort, err = strconv.Atoi(value)
	case "public_key":
		d.Peers = append(d.Peers, wgtypes.Peer{})
		d.Peers[len(d.Peers)-1].PublicKey, err = parseHex(value)
	case "endpoint":
		var a netip.AddrPort
		if a, err = netip.ParseAddrPort(value); err == nil {
			p.Endpoint = net.UDPAddrFromAddrPort(a)
		}
	case "persistent_keepalive_interval":
		var n int
		n, err = strconv.Atoi(value)
		p.PersistentKeepaliveInterval = time.Duration(n) * time.Second
	case "last_handshake_time_sec":
		var n int64
		if n, err = strconv.ParseInt(value, 10, 64); n > 0 {
			p.LastHandshakeTime = time.Unix(n, 0)
		}
	case "allowed_ip":
		var r netip.Prefix
		if r, err = netip.ParsePrefix(value); err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *prefixNet(r))
		}
	}
	return err
}

func parseHex(s string) (k Key, err error) {
	b, err := hex.DecodeString(s)
	if err == nil && len(b) != len(k) {
		err = errors.New("no key")
	}
	copy(k[:], b)
	return k, err
}

func (u uapi) write(cfg wgtypes.Config) error {
	var b bytes.Buffer
	line := func(key string, value any) { fmt.Fprintf(&b, "%s=%v\n", key, value) }
	line("set", 1)
	if k := cfg.PrivateKey; k != nil {
		line("private_key", hex.EncodeToString(k[:]))
	}
	if cfg.ListenPort != nil {
		line("listen_port", *cfg.ListenPort)
	}
	for _, p := range cfg.Peers {
		line("public_key", hex.EncodeToString(p.PublicKey[:]))
		if p.Remove {
			line("remove", true)
			continue
		}
		if p.Endpoint != nil {
			line("endpoint", p.Endpoint.AddrPort())
		}
		if p.ReplaceAllowedIPs {
			line("replace_allowed_ips", true)
		}
		for _, r := range p.AllowedIPs {
			line("allowed_ip", r.String())
		}
		if k := p.PersistentKeepaliveInterval; k != nil {
			line("persistent_keepalive_interval", int(k.Seconds()))
		}
	}
	if _, err := u.ask(b.String()); err != nil {
		return fmt.Errorf("tell shoal-tunnel: %w", err)
	}
	return nil
}
