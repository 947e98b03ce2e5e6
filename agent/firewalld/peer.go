package firewalld

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
)

// peer is firewalld, asked within a time.
type peer struct {
	ctx  context.Context
	conn *dbus.Conn
	cfg  *Config
}

// running tells whether firewalld is there. It is not started by asking.
func (p *peer) running() (there bool, err error) {
	err = p.conn.BusObject().CallWithContext(p.ctx, bus+".NameHasOwner", 0, service).Store(&there)
	return there, err
}

// call calls a method of zones that answers one value.
func (p *peer) call(method string, answer any, args ...any) error {
	call := p.conn.Object(service, objectPath).
		CallWithContext(p.ctx, zoneIface+"."+method, dbus.FlagNoAutoStart, args...)
	if err := call.Store(answer); err != nil {
		return fmt.Errorf("%s %v: %w", method, args, err)
	}
	return nil
}

func (p *peer) zoneOf(link string) (zone string, err error) {
	return zone, p.call("getZoneOfInterface", &zone, link)
}

func (p *peer) bind(zone, link string) (bound string, err error) {
	return bound, p.call("changeZoneOfInterface", &bound, zone, link)
}

// links are the bridge and the tunnels' interfaces, as firewalld names several.
func (p *peer) links() string { return p.cfg.Bridge + "+" }

// open opens what is not open yet, and returns what the administrator should know. It is
// no failure where firewalld is not there, or ends meanwhile.
func (p *peer) open() (said string, err error) {
	there, err := p.running()
	if err == nil && there {
		said, err = p.openRunning()
	}
	if err != nil {
		if there, e := p.running(); e == nil && !there {
			return "", nil
		}
	}
	return said, err
}

func (p *peer) openRunning() (said string, err error) {
	if zone, err := p.zoneOf(p.cfg.Bridge); err != nil {
		return "", err
	} else if zone != "" {
		return fmt.Sprintf("firewalld has %s in the zone %s, where somebody put it: nothing else is opened for pods",
			p.cfg.Bridge, zone), p.close()
	}
	zone, err := p.uplink()
	if err != nil {
		return "", err
	}
	before, err := p.zoneOf(p.links())
	if err != nil {
		return "", err
	}
	if before != "" && before != zone {
		if err := p.setRules(before, nil); err != nil {
			return "", err
		}
	}
	if before != zone {
		if zone, err = p.bind(zone, p.links()); err != nil {
			return "", err
		}
	}
	if err := p.setRules(zone, p.rules()); err != nil {
		return "", err
	}
	if err := p.forwards(zone); err != nil {
		return "", err
	}
	return fmt.Sprintf("firewalld lets pods through: %s is in the zone %s", p.links(), zone), nil
}

// uplink is the zone of the node's own network.
func (p *peer) uplink() (zone string, err error) {
	links, err := p.cfg.Uplinks()
	if err != nil {
		return "", err
	}
	for _, l := range slices.Backward(links) {
		zone, err = p.zoneOf(l)
		if err == nil && zone == "" {
			zone, err = p.bind("", l)
		}
		if err != nil {
			return "", err
		}
	}
	if zone == "" {
		return p.byDefault()
	}
	return zone, nil
}

func (p *peer) byDefault() (zone string, err error) {
	return zone, p.conn.Object(service, objectPath).
		CallWithContext(p.ctx, service+".getDefaultZone", dbus.FlagNoAutoStart).Store(&zone)
}

// forwards is an error where a zone does not forward what it is in it.
func (p *peer) forwards(zone string) error {
	var settings map[string]dbus.Variant
	err := p.call("getZoneSettings2", &settings, zone)
	if err == nil && settings["forward"].Value() != true {
		err = fmt.Errorf("the zone %s forwards nothing within itself, so that pods reach, and are reached by, Services alone: "+
			"firewall-cmd --permanent --zone=%s --add-forward and --reload let them", zone, zone)
	}
	return err
}

// rules let pods ask for names, in the words in which firewalld lists them.
func (p *peer) rules() (out []string) {
	for _, to := range p.cfg.DNS {
		for _, from := range p.cfg.Pods {
			if from.Addr().Is4() != to.Is4() {
				continue
			}
			family := "ipv4"
			if to.Is6() {
				family = "ipv6"
			}
			for _, protocol := range []string{"udp", "tcp"} {
				out = append(out, fmt.Sprintf(`rule family="%s" source address="%s" %s protocol="%s" accept`,
					family, from.Masked(), toDNS(to), protocol))
			}
		}
	}
	return out
}

// toDNS is what a rule of ours has, and none of others: nobody else serves there.
func toDNS(a netip.Addr) string {
	return fmt.Sprintf(`destination address="%s" port port="53"`, a)
}

// setRules has a zone hold these of our rules and no others.
func (p *peer) setRules(zone string, want []string) error {
	var have []string
	if err := p.call("getRichRules", &have, zone); err != nil {
		return err
	}
	var ignored string // the zone again
	for _, r := range have {
		ours := slices.ContainsFunc(p.cfg.DNS, func(a netip.Addr) bool { return strings.Contains(r, toDNS(a)) })
		if ours && !slices.Contains(want, r) {
			if err := p.call("removeRichRule", &ignored, zone, r); err != nil {
				return err
			}
		}
	}
	const forever = int32(0)
	for _, r := range want {
		if slices.Contains(have, r) {
			continue
		}
		if err := p.call("addRichRule", &ignored, zone, r, forever); err != nil {
			return err
		}
	}
	return nil
}

// close takes back what open did.
func (p *peer) close() error {
	if there, err := p.running(); err != nil || !there {
		return err
	}
	zone, err := p.zoneOf(p.links())
	if err != nil || zone == "" {
		return err
	}
	var ignored string
	return errors.Join(p.setRules(zone, nil), p.call("removeInterface", &ignored, zone, p.links()), p.release())
}

// release takes the uplinks out of the default zone, which holds for them all the same,
// where neither firewalld's files nor NetworkManager put them into it.
func (p *peer) release() error {
	var manager bool
	err := p.conn.BusObject().CallWithContext(p.ctx, bus+".NameHasOwner", 0, "org.freedesktop.NetworkManager").
		Store(&manager)
	if err != nil || manager {
		return err
	}
	byDefault, err := p.byDefault()
	if err != nil {
		return err
	}
	links, err := p.cfg.Uplinks()
	for _, l := range links {
		zone, e := p.zoneOf(l)
		if e != nil || zone != byDefault {
			err = errors.Join(err, e)
			continue
		}
		var permanent, ignored string
		e = p.conn.Object(service, objectPath+"/config").
			CallWithContext(p.ctx, service+".config.getZoneOfInterface", dbus.FlagNoAutoStart, l).Store(&permanent)
		if e == nil && permanent == "" {
			e = p.call("removeInterface", &ignored, zone, l)
		}
		err = errors.Join(err, e)
	}
	return err
}
