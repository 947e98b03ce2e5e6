package network

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/cni/podnet"
)

// A pod's annotations that bound its traffic, in bits a second (CNI-8).
const (
	annotationIngress = "kubernetes.io/ingress-bandwidth"
	annotationEgress  = "kubernetes.io/egress-bandwidth"
)

// What upstream's runtimes take for reasonable, and the burst that they ask
// third-party plugins for, the most that the plugin "bandwidth" takes.
var (
	bandwidthMin = resource.MustParse("1k")
	bandwidthMax = resource.MustParse("1P")
)

const bandwidthBurst = math.MaxUint32

// bandwidthOf reads a pod's annotations. Nobody has looked at them before: a pod whose
// annotations cannot be read does not start, as upstream.
func bandwidthOf(annotations map[string]string) (b podnet.Bandwidth, err error) {
	for _, d := range []struct {
		annotation  string
		rate, burst *uint64
	}{{annotationIngress, &b.IngressRate, &b.IngressBurst}, {annotationEgress, &b.EgressRate, &b.EgressBurst}} {
		text, asked := annotations[d.annotation]
		if !asked {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return podnet.Bandwidth{}, fmt.Errorf(
				"the pod's annotation %s: %q is not a quantity of bits a second, such as 10M: %w",
				d.annotation, text, err)
		}
		if q.Cmp(bandwidthMin) < 0 || q.Cmp(bandwidthMax) > 0 {
			return podnet.Bandwidth{}, fmt.Errorf(
				"the pod's annotation %s: %s bits a second is not between %s and %s", d.annotation, text,
				&bandwidthMin, &bandwidthMax)
		}
		*d.rate, *d.burst = uint64(q.Value()), bandwidthBurst
	}
	return b, nil
}
