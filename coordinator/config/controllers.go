package config

import (
	"strconv"

	"github.com/spf13/pflag"
)

// Controllers are settings of single controllers, in the words of upstream's controller
// manager.
type Controllers struct {
	// MaxEndpointsPerSlice is how many endpoints an EndpointSlice of a Service has at most.
	MaxEndpointsPerSlice int `json:"maxEndpointsPerSlice,omitempty"`
	// TerminatedPodGCThreshold is how many finished pods the cluster keeps; 0 and less: all.
	TerminatedPodGCThreshold int `json:"terminatedPodGCThreshold,omitempty"`
}

// mostEndpoints is what the API takes in one slice.
const mostEndpoints = 1000

func defaultControllers() Controllers {
	return Controllers{MaxEndpointsPerSlice: 100, TerminatedPodGCThreshold: 12500}
}

func (c *Controllers) addFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.MaxEndpointsPerSlice, "max-endpoints-per-slice", c.MaxEndpointsPerSlice,
		"how many endpoints an EndpointSlice of a Service has at most, 1 to 1000")
	fs.IntVar(&c.TerminatedPodGCThreshold, "terminated-pod-gc-threshold", c.TerminatedPodGCThreshold,
		"how many finished pods the cluster keeps before the oldest are deleted; 0: all")
}

// validate tells what cannot be by bad(field, value, remedy).
func (c *Controllers) validate(bad func(field, value, remedy string)) {
	if n := c.MaxEndpointsPerSlice; n < 1 || n > mostEndpoints {
		bad("maxEndpointsPerSlice", strconv.Itoa(n), "give a number from 1 to "+strconv.Itoa(mostEndpoints))
	}
}
