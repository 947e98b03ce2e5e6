package metrics

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"time"
)

// Types of families.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// Page writes families one after another.
type Page struct {
	w *bufio.Writer
}

// NewPage writes to w; Flush must follow.
func NewPage(w io.Writer) *Page { return &Page{bufio.NewWriter(w)} }

// Flush writes what is left, and returns the first error of any write.
func (p *Page) Flush() error { return p.w.Flush() }

// Family is one that samples are put into. Its head is written with the first of
// them: a family without any is not there.
type Family struct {
	page             *Page
	name, kind, help string
	begun            bool
}

// Family begins a family. All its samples come before the next one's.
func (p *Page) Family(name, kind, help string) *Family {
	return &Family{page: p, name: name, kind: kind, help: help}
}

// Put writes a sample; labels are pairs of names and values.
func (f *Family) Put(v float64, labels ...string) { f.PutAt(v, time.Time{}, labels...) }

// PutAt writes a sample that was measured at a time, zero for now.
func (f *Family) PutAt(v float64, at time.Time, labels ...string) {
	f.sample(f.name, v, at, labels)
}

func (f *Family) sample(name string, v float64, at time.Time, labels []string) {
	w := f.page.w
	if !f.begun {
		f.begun = true
		w.WriteString("# HELP " + f.name + " " + escapeHelp.Replace(f.help) + "\n")
		w.WriteString("# TYPE " + f.name + " " + f.kind + "\n")
	}
	w.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		w.WriteByte("{,"[min(i, 1)])
		w.WriteString(labels[i])
		w.WriteString(`="`)
		escapeValue.WriteString(w, labels[i+1])
		w.WriteByte('"')
	}
	if len(labels) > 1 {
		w.WriteByte('}')
	}
	w.WriteByte(' ')
	w.WriteString(number(v))
	if !at.IsZero() {
		w.WriteByte(' ')
		w.WriteString(strconv.FormatInt(at.UnixMilli(), 10))
	}
	w.WriteByte('\n')
}

// The text format has no other escapes than these.
var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
