package gateway

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// What nodes take of all Gateways and Ingresses together. Where more is asked for, each
// namespace gets what it asks for as long as that is within an equal share of what is there;
// those that ask for more share the rest, their oldest objects first.
type amount struct {
	ports   int // of nodes
	matches int // that a proxy looks through: a rule's, for each of its host names
	bytes   int // of the configuration as it is told
}

var limits = amount{
	ports: gatewayfeed.MaxPorts - 4, // those of Ingresses are four
	// A request is compared, one after the other, with those of its own host name, of wildcards
	// and of all names.
	matches: 200_000,
	bytes:   gatewayfeed.MaxLine / 8 * 7, // the rest is for what nobody is charged for
}

func (a amount) plus(b amount) amount {
	return amount{a.ports + b.ports, a.matches + b.matches, a.bytes + b.bytes}
}

func (a amount) within(b amount) bool {
	return a.ports <= b.ports && a.matches <= b.matches && a.bytes <= b.bytes
}

// ReasonLimitExceeded is why a listener or route is not accepted of which there are too many
// in its namespace.
const ReasonLimitExceeded = "LimitExceeded"

const limitMessage = "all Gateways and Ingresses need more than nodes take, and this namespace more than its share"

// ingressLimitError is what the status of an Ingress says of its ports.
const ingressLimitError = "shoal-project.io/" + ReasonLimitExceeded

// demand is what an object asks for.
type demand struct {
	namespace, key string
	amount
}

// share tells which demands there is no room for. They are in the order in which a namespace's
// count.
func share(all []demand, most amount) map[string]bool {
	asked := map[string]amount{}
	for _, d := range all {
		asked[d.namespace] = asked[d.namespace].plus(d.amount)
	}
	level := amount{
		ports:   fill(asked, most.ports, func(a amount) int { return a.ports }),
		matches: fill(asked, most.matches, func(a amount) int { return a.matches }),
		bytes:   fill(asked, most.bytes, func(a amount) int { return a.bytes }),
	}
	refused := map[string]bool{}
	given := map[string]amount{}
	for _, d := range all {
		if next := given[d.namespace].plus(d.amount); next.within(level) {
			given[d.namespace] = next
		} else {
			refused[d.key] = true
		}
	}
	return refused
}

// fill is how much each namespace may have at most, so that all have no more than there is.
func fill(asked map[string]amount, most int, of func(amount) int) int {
	var all []int
	for _, a := range asked {
		all = append(all, of(a))
	}
	slices.Sort(all)
	for i, n := range all {
		if left := len(all) - i; n > most/left {
			return most / left
		}
		most -= n
	}
	return math.MaxInt
}

// overLimit is what there is no room for in a plan that was compiled without a limit; nil: there is.
func (c *compiler) overLimit(most amount) map[string]bool {
	config := c.plan.Config
	ports := map[*gateway]map[port]bool{}
	all := amount{}
	if c.plan.Told != nil {
		all.bytes = c.plan.Told.Most()
	}
	for _, g := range c.order {
		ports[g] = map[port]bool{}
		for _, l := range g.listeners {
			if p := portOf(l); l.usable && !ports[g][p] {
				ports[g][p] = true
				all.ports++
			}
		}
	}
	for i := range config.Ports {
		for j := range config.Ports[i].Listeners {
			for k := range config.Ports[i].Listeners[j].Routes {
				all.matches += matches(&config.Ports[i].Listeners[j].Routes[k])
			}
		}
	}
	if all.within(most) {
		return nil
	}
	return share(c.demands(), most)
}

func matches(r *gatewayfeed.Route) (n int) {
	for i := range r.Rules {
		n += max(len(r.Rules[i].Matches), 1)
	}
	return n * max(len(r.Hostnames), 1)
}

// demands are what the objects of the plan ask for: listeners before routes, and the oldest first.
func (c *compiler) demands() (out []demand) {
	for _, g := range c.order {
		seen := map[port]bool{}
		for _, l := range g.listeners {
			if !l.usable {
				continue
			}
			d := demand{namespace: l.namespace, key: l.key(), amount: amount{bytes: listenerBytes + c.secrets(&l.feed)}}
			if p := portOf(l); !seen[p] {
				seen[p] = true
				d.ports = 1
			}
			out = append(out, d)
		}
	}
	costs := map[string]amount{}
	for i := range c.plan.Config.Ports {
		for j := range c.plan.Config.Ports[i].Listeners {
			l := &c.plan.Config.Ports[i].Listeners[j]
			for k := range l.Routes {
				r := &l.Routes[k]
				costs[r.Name] = costs[r.Name].plus(amount{matches: matches(r), bytes: size(r)})
			}
			for k := range l.Streams {
				costs[l.Streams[k].Name] = costs[l.Streams[k].Name].plus(amount{bytes: size(l.Streams[k])})
			}
		}
	}
	for name, certificates := range c.ingressCertificates {
		costs[name] = costs[name].plus(amount{bytes: c.secrets(&gatewayfeed.Listener{Certificates: certificates})})
	}
	for _, key := range c.routeOrder {
		if cost, ok := costs[key]; ok {
			parts := strings.Split(key, "/") // kind/namespace/name
			out = append(out, demand{namespace: parts[1], key: key, amount: cost})
		}
	}
	return out
}

// listenerBytes is what a listener has beside its routes and certificates.
const listenerBytes = 512

// secrets are the bytes of the certificates and authorities that a listener names.
func (c *compiler) secrets(l *gatewayfeed.Listener) (n int) {
	for _, name := range l.Certificates {
		cert := c.plan.Config.Certificates[name]
		n += len(name) + len(cert.Chain) + len(cert.Key)
	}
	if l.Clients != nil {
		for _, name := range l.Clients.Authorities {
			n += len(name) + len(c.plan.Config.Authorities[name])
		}
	}
	return n
}

func size(v any) int {
	data, err := json.Marshal(v)
	if err != nil {
		return 0 // all of it is told, or nothing
	}
	return len(data)
}

// key names a listener among what may be refused.
func (l *listener) key() string {
	if l.set != nil {
		return "ListenerSet/" + l.path()
	}
	return "Gateway/" + l.path()
}
