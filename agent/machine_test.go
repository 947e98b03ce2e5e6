package main

import (
	"testing"

	"github.com/shoal-project/shoal/agent/host"
)

func TestOtherMachine(t *testing.T) {
	facts := func(uuid, id string) machine { return machineOf(host.Facts{SystemUUID: uuid, MachineID: id}) }
	for name, c := range map[string]struct {
		before, now machine
		other       bool
	}{
		"the same":                 {facts("u", "i"), facts("u", "i"), false},
		"a copy":                   {facts("u", "i"), facts("v", "i"), true},
		"installed anew":           {facts("u", "i"), facts("u", "j"), false},
		"containers":               {facts("i", "i"), facts("j", "j"), true},
		"nothing known":            {facts("", ""), facts("", ""), false},
		"no UUID any more":         {facts("u", "i"), facts("i", "i"), false},
		"nothing known any more":   {facts("u", "i"), facts("", ""), false},
		"an ID where there was no": {facts("", ""), facts("i", "i"), false},
	} {
		if got := c.now.other(c.before); got != c.other {
			t.Errorf("%s: another machine: %v", name, got)
		}
	}
}
