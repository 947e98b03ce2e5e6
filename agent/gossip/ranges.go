package gossip

import (
	"encoding/json"
	"fmt"
)

// RangesAnnotation of a Node has the ranges of a cluster with both address families, as
// JSON. The coordinator writes it, so that a cluster of one family becomes one with both
// though its nodes' configuration has the first ranges only. An earlier version of the
// agent does not look at it.
const RangesAnnotation = "shoal-project.io/ranges"

// maxRanges bounds the annotation.
const maxRanges = 1 << 10

// Ranges are what a node is told: of each the first is the primary family's, with a comma
// between as in the configuration.
type Ranges struct {
	Pods     string `json:"pods"`
	Services string `json:"services"`
	DNS      string `json:"dns,omitempty"` // addresses
}

// Text is the annotation; "" for no ranges.
func (r Ranges) Text() string {
	if r == (Ranges{}) {
		return ""
	}
	text, _ := json.Marshal(r) // strings only
	return string(text)
}

// RangesIn reads a Node's annotation; none is no error.
func RangesIn(annotations map[string]string) (r Ranges, err error) {
	text := annotations[RangesAnnotation]
	if text == "" {
		return r, nil
	}
	if len(text) > maxRanges {
		return r, fmt.Errorf("annotation %s is longer than %d bytes", RangesAnnotation, maxRanges)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Ranges{}, fmt.Errorf("annotation %s: %w", RangesAnnotation, err)
	}
	return r, nil
}
