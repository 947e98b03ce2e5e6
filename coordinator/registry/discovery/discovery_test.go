package discovery

import (
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

func TestScenarios(t *testing.T) { kindtest.Play(t, Kinds(), nil) }

// The limits of one slice are upstream's: up to each is well, one more is not.
func TestLimits(t *testing.T) {
	names := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("n%d", i))
		}
		return out
	}
	addresses := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("10.0.0.%d", i))
		}
		return out
	}
	endpoint := func(change func(e *discoveryv1.Endpoint)) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			e := discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}}
			change(&e)
			s.Endpoints = []discoveryv1.Endpoint{e}
		}
	}
	for _, limit := range []struct {
		of   string
		most int
		with func(n int) func(*discoveryv1.EndpointSlice)
	}{
		{"endpoints", 1000, func(n int) func(*discoveryv1.EndpointSlice) {
			return func(s *discoveryv1.EndpointSlice) {
				for range n {
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}})
				}
			}
		}},
		{"endpoints[0].addresses", 100, func(n int) func(*discoveryv1.EndpointSlice) {
			return endpoint(func(e *discoveryv1.Endpoint) { e.Addresses = addresses(n) })
		}},
		{"endpoints[0].deprecatedTopology", 16, func(n int) func(*discoveryv1.EndpointSlice) {
			return endpoint(func(e *discoveryv1.Endpoint) {
				e.DeprecatedTopology = map[string]string{}
				for _, name := range names(n) {
					e.DeprecatedTopology[name] = "x"
				}
			})
		}},
		{"endpoints[0].hints.forZones", 8, func(n int) func(*discoveryv1.EndpointSlice) {
			return endpoint(func(e *discoveryv1.Endpoint) {
				e.Hints = &discoveryv1.EndpointHints{}
				for _, name := range names(n) {
					e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
				}
			})
		}},
		{"endpoints[0].hints.forNodes", 8, func(n int) func(*discoveryv1.EndpointSlice) {
			return endpoint(func(e *discoveryv1.Endpoint) {
				e.Hints = &discoveryv1.EndpointHints{}
				for _, name := range names(n) {
					e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
				}
			})
		}},
		{"ports", 20000, func(n int) func(*discoveryv1.EndpointSlice) {
			return func(s *discoveryv1.EndpointSlice) {
				for _, name := range names(n) {
					s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name})
				}
				defaultPorts(s)
			}
		}},
	} {
		check := func(n int) string {
			s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
			limit.with(n)(s)
			return validate(s, nil).ToAggregate().Error()
		}
		t.Run(strings.ReplaceAll(limit.of, "/", "."), func(t *testing.T) {
			s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
			limit.with(limit.most)(s)
			if errs := validate(s, nil); len(errs) > 0 {
				t.Errorf("%d: %v", limit.most, errs)
			}
			want := fmt.Sprintf("%s: Too many: %d: must have at most %d items", limit.of, limit.most+1, limit.most)
			if got := check(limit.most + 1); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}
