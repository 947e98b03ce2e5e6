//go:build !manual

package process

import "github.com/spf13/cobra"

// AddManual is for programs that were built with the tag manual.
func AddManual(*cobra.Command) {}
