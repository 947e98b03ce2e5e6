package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-project/shoal/coordinator/config"
)

// loadConfig reads the file, then lets the flags that were given override it.
func loadConfig(cmd *cobra.Command, file string) (config.Config, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return cfg, err
	}
	given := cmd.Flags()
	fs := newFlagSet()
	cfg.AddFlags(fs)
	var errs []error
	given.Visit(func(f *flag) {
		if fs.Lookup(f.Name) != nil {
			errs = append(errs, override(fs, f))
		}
	})
	return cfg, errors.Join(append(errs, cfg.Validate(), checkMetrics(cfg.Metrics))...)
}

type flag = pflag.Flag

// flagValues are the flags that would say what the configuration does.
type flagValues config.Config

// GetFlagz lists them for /flagz.
func (v flagValues) GetFlagz() map[string]string {
	cfg, fs, out := config.Config(v), newFlagSet(), map[string]string{}
	cfg.AddFlags(fs)
	fs.VisitAll(func(f *flag) { out[f.Name] = f.Value.String() })
	return out
}

func newFlagSet() *pflag.FlagSet { return pflag.NewFlagSet("config", pflag.ContinueOnError) }

// override sets the flag of f's name to what the user gave; a list replaces the
// file's list.
func override(fs *pflag.FlagSet, f *flag) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return fs.Lookup(f.Name).Value.(pflag.SliceValue).Replace(list.GetSlice())
	}
	value := f.Value.String()
	if f.Value.Type() == "stringToString" { // a map's text has brackets that it does not read
		value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
	}
	if err := fs.Set(f.Name, value); err != nil {
		return fmt.Errorf("--%s: %w", f.Name, err)
	}
	return nil
}
