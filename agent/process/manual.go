//go:build manual

package process

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// AddManual gives a program the command that packages are made with: it writes
// what the shells complete and a manual page for each command. It is in programs
// that were built with the tag manual only, since the rest of them would carry its
// library about.
func AddManual(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use: "manual DIR", Short: "Write manual pages and completions below a directory", Hidden: true,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return writeManual(root, args[0]) },
	})
}

func writeManual(root *cobra.Command, dir string) error {
	pages := filepath.Join(dir, "man", "man8")
	for _, d := range []string{pages, filepath.Join(dir, "bash"), filepath.Join(dir, "zsh"), filepath.Join(dir, "fish")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	name := root.Name()
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, "bash", name), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "zsh", "_"+name)); err != nil {
		return err
	}
	if err := root.GenFishCompletionFile(filepath.Join(dir, "fish", name+".fish"), true); err != nil {
		return err
	}
	for _, c := range root.Commands() { // cobra's own needs no page
		if c.Name() == "completion" {
			root.RemoveCommand(c)
		}
	}
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: "Shoal", Manual: "Shoal"}, pages)
}
