package oci

import (
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// addDevices edits the specification as the files of the container device interface
// (CDI, in /etc/cdi and /var/run/cdi) say for the container's devices. Drivers, which
// are as trusted as the agent, write them; they are read again each time.
func (in Input) addDevices(s *specs.Spec) error {
	var names []string
	for _, d := range in.Config.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	// Older device plugins name them by annotations (cdi.k8s.io/…).
	_, annotated, err := cdi.ParseAnnotations(in.Config.GetAnnotations())
	if err != nil {
		return fmt.Errorf("CDI annotations: %w", err)
	}
	for _, name := range annotated {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	known, err := cdi.NewCache(cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read the device files of CDI: %w", err)
	}
	if _, err := known.InjectDevices(s, names...); err != nil {
		return fmt.Errorf("CDI device injection failed: %w", err)
	}
	return nil
}
