// Command failures reads what `go test -json` has printed, and tells which tests failed and
// in what words: the last lines of a long run are what people see first. A test that
// failed and then passed when it was run again is named as such: it is a bug to mend, of
// the test or of what it tests.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json` (go doc test2json).
type event struct{ Action, Package, Test, Output string }

type name struct{ pkg, test string }

// outcome is what is known of a test, or of a package where test is empty.
type outcome struct {
	name
	failed, passed bool // in one run or another
	// said is the output of the run under way, how what it was when it failed.
	said, how []string
}

const (
	keptLines  = 400 // of a test's output
	shownLines = 12
	lineLength = 300
	// A line of output is that long at most; test2json cuts longer ones.
	maxLine = 1 << 20
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(1)
	}
}

func report(in io.Reader, out io.Writer) error {
	all, err := read(in)
	if err != nil {
		return err
	}
	for _, o := range all {
		if !o.failed || explained(o, all) {
			continue
		}
		what := "FAILED"
		if o.passed {
			what = "FLAKY, passed when run again"
		}
		fmt.Fprintf(out, "%s: %s\n", what, strings.TrimSpace(o.pkg+" "+o.test))
		for _, line := range shown(o.how) {
			fmt.Fprintln(out, "   ", line)
		}
	}
	return nil
}

func read(in io.Reader) ([]*outcome, error) {
	known := map[name]*outcome{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // of a linker, or what a run that was killed had begun
		}
		n := name{e.Package, e.Test}
		o := known[n]
		if o == nil {
			o = &outcome{name: n}
			known[n] = o
		}
		switch e.Action {
		case "run", "start":
			o.said = nil
		case "output":
			o.said = append(o.said, strings.TrimRight(e.Output, "\n"))
			o.said = o.said[max(0, len(o.said)-keptLines):]
		case "pass":
			o.passed, o.said = true, nil
		case "fail":
			o.failed, o.how, o.said = true, o.said, nil
		}
	}
	var all []*outcome
	for _, o := range known {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *outcome) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test)) })
	return all, lines.Err()
}

// explained tells whether a failure is only that of a part: of a test in a package, of a
// subtest in a test.
func explained(o *outcome, all []*outcome) bool {
	return slices.ContainsFunc(all, func(part *outcome) bool {
		return part.failed && part.pkg == o.pkg && part != o && (o.test == "" || strings.HasPrefix(part.test, o.test+"/"))
	})
}

var says = regexp.MustCompile(`^\s+\w+\.go:\d+: `)

// shown are a test's own messages with what follows each, or its last lines.
func shown(said []string) (out []string) {
	message := false
	for _, line := range said {
		message = says.MatchString(line) || message && strings.HasPrefix(line, "        ")
		if message && len(out) < shownLines {
			out = append(out, line)
		}
	}
	if out == nil {
		out = slices.Clone(said[max(0, len(said)-shownLines):])
	}
	for i, line := range out {
		if len(line) > lineLength {
			out[i] = line[:lineLength] + "…"
		}
	}
	return out
}
