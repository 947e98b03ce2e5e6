package config

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestIOLatencyTargets(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"{}", ""},
		{"{Guaranteed: 10ms, Burstable: 25ms, BestEffort: 100ms}", ""},
		{"{Guaranteed: 10ms, BestEffort: 10ms}", ""},
		{"{besteffort: 10ms}", `"besteffort" is no class of pods: use Guaranteed, Burstable or BestEffort`},
		{"{Burstable: 1us}", "Burstable: 1µs: between 50µs and 10s"},
		{"{Guaranteed: 11s}", "between"},
		{"{Guaranteed: 50ms, Burstable: 20ms}", "give Guaranteed the shortest and BestEffort the longest"},
		{"{Guaranteed: 50ms, BestEffort: 20ms}", "give Guaranteed the shortest"},
	} {
		c := Default()
		if err := yaml.UnmarshalStrict([]byte("ioLatencyTargets: "+tt.text), &c); err != nil {
			t.Fatal(err)
		}
		var said string
		if err := c.Validate(); err != nil {
			for line := range strings.Lines(err.Error()) {
				if strings.Contains(line, "ioLatencyTargets") {
					said += line
				}
			}
		}
		if tt.want == "" && said != "" || !strings.Contains(said, tt.want) {
			t.Errorf("%s: %q, want %q", tt.text, said, tt.want)
		}
	}
}
