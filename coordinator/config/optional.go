package config

import "strconv"

// optionalBool is a flag that may be unset.
type optionalBool struct{ to **bool }

// String and the next two make it a flag.
func (b optionalBool) String() string {
	if b.to == nil || *b.to == nil {
		return ""
	}
	return strconv.FormatBool(**b.to)
}

// Set parses the flag's value.
func (b optionalBool) Set(s string) error {
	v, err := strconv.ParseBool(s)
	if err == nil {
		*b.to = &v
	}
	return err
}

// Type names it in a flag's help.
func (b optionalBool) Type() string { return "bool" }
