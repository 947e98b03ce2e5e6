package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PSI is one line of a pressure file: averages in percent, total in
// microseconds.
type PSI struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Pressure is the stall information of one resource (psi(7)).
type Pressure struct{ Some, Full PSI }

// Stall is the stall information of cpu, memory or io for the whole machine,
// nil if the kernel has none.
func Stall(resource string) *Pressure {
	b, err := os.ReadFile(filepath.Join(proc, "pressure", resource))
	if err != nil {
		return nil // EOPNOTSUPP means that it was turned off at boot
	}
	p := ParsePressure(b)
	return &p
}

// ParsePressure reads the text of one file, the machine's or a control group's.
func ParsePressure(b []byte) Pressure {
	var p Pressure
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		psi := PSI{Avg10: percent(f[1]), Avg60: percent(f[2]), Avg300: percent(f[3])}
		_, total, _ := strings.Cut(f[4], "=")
		psi.Total, _ = strconv.ParseUint(total, 10, 64)
		if f[0] == "some" {
			p.Some = psi
		} else {
			p.Full = psi
		}
	}
	return p
}

func percent(field string) float64 {
	_, v, _ := strings.Cut(field, "=")
	f, _ := strconv.ParseFloat(v, 64)
	return f
}
