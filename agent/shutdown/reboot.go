package shutdown

import (
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// RebootAnnotation of a Node asks its machine to reboot. An administrator writes it,
// the node removes it when that is done.
const RebootAnnotation = "shoal-project.io/reboot"

// Reboot is what the annotation says.
type Reboot struct {
	// Boot is the machine's (nodeInfo.bootID) that is to end: in another one it has.
	Boot string `json:"boot"`
	// Uncordon: the node takes pods again afterwards.
	Uncordon bool `json:"uncordon,omitempty"`
}

const maxReboot = 512

// ParseReboot reads the annotation; nil for none.
func ParseReboot(text string) (*Reboot, error) {
	if text == "" {
		return nil, nil
	}
	r := &Reboot{}
	if len(text) > maxReboot || json.Unmarshal([]byte(text), r) != nil || r.Boot == "" {
		return nil, errors.New("it is no JSON object that names a boot")
	}
	return r, nil
}

// Step is what a node does about a reboot.
type Step int

// Steps of a reboot.
const (
	Nothing Step = iota
	// Now: the boot that is to end is this one.
	Now
	// Over: the machine has rebooted, and its node is Ready.
	Over
)

// Decide is what a machine does by its Node; boot is its present one.
func (r *Reboot) Decide(n *corev1.Node, boot string) Step {
	switch {
	case r == nil:
		return Nothing
	case r.Boot == boot:
		return Now
	case n.Status.NodeInfo.BootID != boot: // what is Ready is the machine of before
		return Nothing
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return Over
		}
	}
	return Nothing
}
