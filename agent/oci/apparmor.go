package oci

import (
	"fmt"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultApparmor is the profile of containers that ask for none or for
// RuntimeDefault: containerd's, under a name of our own.
const defaultApparmor = "shoal-default"

// LoadApparmor loads the default profile where the host has AppArmor. Without
// the parser (on Debian: the package apparmor) containers are not confined
// unless they name a profile.
func (h *Host) LoadApparmor() error {
	if !h.Apparmor {
		return nil
	}
	if err := apparmor.LoadDefaultProfile(defaultApparmor); err != nil {
		return fmt.Errorf("load AppArmor's default profile: %w", err)
	}
	h.apparmor = defaultApparmor
	return nil
}

// apparmorProfile is the profile's name for the container, "" for none.
func (in Input) apparmorProfile() (string, error) {
	p := in.security().GetApparmor()
	switch p.GetProfileType() {
	case criv1.SecurityProfile_Unconfined:
		return "", nil
	case criv1.SecurityProfile_Localhost:
		name := p.GetLocalhostRef()
		if !in.Host.Apparmor {
			return "", fmt.Errorf("apparmor profile %q: AppArmor is not enabled on the host", name)
		}
		if !loadedApparmor(name) {
			return "", fmt.Errorf("apparmor profile not found %s", name)
		}
		return name, nil
	}
	return in.Host.apparmor, nil // RuntimeDefault, and nothing said
}

// loadedApparmor tells whether the kernel has the profile: one line each, the
// name and its mode (apparmor(7)).
func loadedApparmor(name string) bool {
	b, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return true // the OCI runtime will tell
	}
	for line := range strings.Lines(string(b)) {
		if i := strings.LastIndex(line, " ("); i > 0 && line[:i] == name {
			return true
		}
	}
	return false
}
