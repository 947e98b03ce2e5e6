package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Duration is written as Go writes it: 30s, 5m, 2160h.
type Duration time.Duration

// String is Duration's text.
func (d Duration) String() string { return time.Duration(d).String() }

// Set and Type make it a flag.
func (d *Duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

// Type names it in a flag's help.
func (d Duration) Type() string { return "duration" }

// UnmarshalJSON reads it from the file.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("duration %s: give a text such as 30s or 5m", data)
	}
	return d.Set(s)
}

// MarshalJSON writes it to a file.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

func itoa(n int) string { return strconv.Itoa(n) }
