package config

import (
	"maps"

	cliflag "k8s.io/component-base/cli/flag"
)

// switches is a flag of keys that are true or false; a key alone is true. Each
// flag replaces what the file says.
type switches map[string]string

// Set implements pflag.Value, as do the following.
func (s *switches) Set(value string) error {
	m := cliflag.ConfigurationMap{}
	if err := m.Set(value); err != nil {
		return err
	}
	*s = switches(m)
	return nil
}

// String has the form that Set reads.
func (s *switches) String() string {
	m := cliflag.ConfigurationMap(maps.Clone(*s))
	return m.String()
}

// Type is how usage names it.
func (s *switches) Type() string { return "mapStringString" }
