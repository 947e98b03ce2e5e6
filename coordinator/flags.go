package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

type flag = pflag.Flag

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
