package launch

import (
	"slices"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/volume"
)

// process says what runs, where, with which standard streams, and which signal
// ends it.
func process(c *container) error {
	c.config.Command = c.expand(c.Container.Command)
	c.config.Args = c.expand(c.Container.Args)
	c.config.WorkingDir = c.Container.WorkingDir
	c.config.Stdin = c.Container.Stdin
	c.config.StdinOnce = c.Container.StdinOnce
	c.config.Tty = c.Container.TTY
	if l := c.Container.Lifecycle; l != nil && l.StopSignal != nil {
		c.config.StopSignal = criv1.Signal(criv1.Signal_value[string(*l.StopSignal)])
	}
	return nil
}

func (c *container) expand(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = volume.Expand(s, c.variable)
	}
	return out
}

// variable is one of the container's environment so far.
func (c *container) variable(name string) (string, bool) {
	for _, e := range slices.Backward(c.config.Envs) {
		if e.Key == name {
			return string(e.Value), true
		}
	}
	return "", false
}
