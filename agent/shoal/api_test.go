package main

import (
	"encoding/json"
	"testing"
)

func TestState(t *testing.T) {
	for conditions, want := range map[string]string{
		`[]`: "NotReady",
		`[{"type":"Ready","status":"True"},{"type":"DiskPressure","status":"False"}]`: "Ready",
		`[{"type":"DiskPressure","status":"True"},{"type":"Ready","status":"True"}]`:  "Ready, DiskPressure (it takes no new pods until more of its disk is free)",
	} {
		var o object
		if err := json.Unmarshal([]byte(`{"status":{"conditions":`+conditions+`}}`), &o); err != nil {
			t.Fatal(err)
		}
		if got := o.state(); got != want {
			t.Errorf("%s: %q, want %q", conditions, got, want)
		}
	}
}
