package host

import (
	"os"
	"strings"
)

// AppArmor tells whether the kernel enforces AppArmor's profiles.
func AppArmor() bool {
	on, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return strings.HasPrefix(string(on), "Y")
}
