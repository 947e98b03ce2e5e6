package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestPage(t *testing.T) {
	var text strings.Builder
	p := NewPage(&text)
	p.Family("empty", Gauge, "None of it is on the page.")
	f := p.Family("a_bytes", Gauge, "Has a \\ and\na line.")
	f.Put(1.5e9)
	f.Put(2, "image", "a\"b\\c\nd", "name", "ü")
	f.PutAt(3, time.UnixMilli(1700000000123), "id", "/")
	c := NewCounts("b_total", "Counts.", "kind")
	c.Inc("x")
	c.Inc("x")
	c.Preset("a")
	c.Show(p)
	d := NewDurations("c_seconds", "Takes time.", []float64{.1, 1})
	for _, took := range []time.Duration{0, 100 * time.Millisecond, time.Second, 2 * time.Second} {
		d.Observe(took)
	}
	d.Show(p)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	want := `# HELP a_bytes Has a \\ and\na line.
# TYPE a_bytes gauge
a_bytes 1.5e+09
a_bytes{image="a\"b\\c\nd",name="ü"} 2
a_bytes{id="/"} 3 1700000000123
# HELP b_total Counts.
# TYPE b_total counter
b_total{kind="a"} 0
b_total{kind="x"} 2
# HELP c_seconds Takes time.
# TYPE c_seconds histogram
c_seconds_bucket{le="0.1"} 2
c_seconds_bucket{le="1"} 3
c_seconds_bucket{le="+Inf"} 4
c_seconds_sum 3.1
c_seconds_count 4
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("Prometheus reads %v: %v", problems, err)
	}
}

// What nobody gave is not counted.
func TestNil(t *testing.T) {
	var c *Counts
	c.Inc("a")
	var d *Durations
	d.Observe(time.Second)
}

func TestFlushTells(t *testing.T) {
	p := NewPage(full{})
	p.Family("a", Gauge, "A.").Put(1)
	if err := p.Flush(); !errors.Is(err, errFull) {
		t.Errorf("a page that cannot be written is flushed: %v", err)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// What upstream's kubelet tells of a runtime that is too old is told where it is.
func TestLosesSupport(t *testing.T) {
	for version, want := range map[string]bool{"": false, "1.37.0": true} {
		var text strings.Builder
		a, p := NewAgent(), NewPage(&text)
		a.LosesSupport = version
		a.Show(p)
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text.String(), `kubelet_cri_losing_support{version="1.37.0"} 1`); got != want {
			t.Errorf("%q: shown: %v", version, got)
		}
	}
}
