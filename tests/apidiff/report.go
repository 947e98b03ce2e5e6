package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// found is a distinct cause of differences.
type found struct {
	text     string
	detail   string
	count    int
	kinds    map[string]bool
	what     map[string]bool
	example  request
	up, here answer
	accepted string // the reason
}

// acceptance is a line of accepted.txt.
type acceptance struct {
	pattern *regexp.Regexp
	reason  string
}

type report struct {
	accepted []acceptance

	mu          sync.Mutex
	causeOf     map[string]*found
	total, same int
	upCodes     map[int]int
}

func newReport(accepted []acceptance) *report {
	return &report{accepted: accepted, causeOf: map[string]*found{}, upCodes: map[int]int{}}
}

// readAccepted reads lines "PATTERN -> REASON"; the pattern is a regular
// expression that a whole line of a cause has to match.
func readAccepted(file string) ([]acceptance, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []acceptance
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, found := strings.Cut(line, " -> ")
		if !found || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: write PATTERN -> REASON", file, n)
		}
		re, err := regexp.Compile("^(?:" + pattern + ")$")
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		out = append(out, acceptance{re, reason})
	}
	return out, lines.Err()
}

// ask sends a request to both and keeps where they differ.
func (r *report) ask(ctx context.Context, p *pair, req request) error {
	var answers [2]answer
	for i, s := range []*server{p.upstream, p.shoal} {
		sent, err := fill(ctx, s, req)
		if errors.Is(err, errGone) {
			r.add(req, finding{text: "the seed is gone " + s.name}, answer{}, answer{})
			return nil
		}
		if err != nil {
			return err
		}
		if answers[i], err = s.do(ctx, sent); err != nil {
			return err
		}
	}
	r.judge(req, answers[0], answers[1])
	return nil
}

// errGone tells that an object that a request is about is not there any more.
var errGone = errors.New("the object is gone")

// fill puts what a server made itself into a request.
func fill(ctx context.Context, s *server, req request) (request, error) {
	if req.Live == "" || !bytes.Contains(req.Body, []byte("$")) {
		return req, nil
	}
	var live struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	a, err := s.do(ctx, request{Method: http.MethodGet, Path: req.Live})
	if err != nil {
		return req, err
	}
	if a.Code == http.StatusNotFound {
		return req, fmt.Errorf("%s: %s: %w", s.name, req.Live, errGone)
	}
	if err := json.Unmarshal(a.Body, &live); err != nil {
		return req, fmt.Errorf("%s: %s: %w", s.name, req.Live, err)
	}
	for mark, value := range map[string]string{uidMark: live.Metadata.UID, versionMark: live.Metadata.ResourceVersion,
		accessMark: string(tokenVolume.Find(a.Body))} {
		req.Body = bytes.ReplaceAll(req.Body, []byte(mark), []byte(value))
	}
	return req, nil
}

func (r *report) judge(req request, up, here answer) {
	findings := compare(req, up, here)
	r.mu.Lock()
	r.total++
	r.upCodes[up.Code]++
	if len(findings) == 0 {
		r.same++
	}
	r.mu.Unlock()
	for _, f := range findings {
		r.add(req, f, up, here)
	}
}

// add keeps a finding of a request, once for each cause.
func (r *report) add(req request, f finding, up, here answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A cause that all kinds share may be accepted for one of them.
	text := req.Kind + ": " + f.text
	reason := r.acceptedFor(text)
	if f.shared && reason == "" {
		text = f.text
		reason = r.acceptedFor(text)
	}
	c := r.causeOf[text]
	if c == nil {
		c = &found{text: text, accepted: reason, kinds: map[string]bool{}, what: map[string]bool{}}
		r.causeOf[text] = c
	}
	c.count++
	c.kinds[req.Kind], c.what[req.What] = true, true
	if c.count == 1 || cmp.Or(cmp.Compare(size(req), size(c.example)), cmp.Compare(req.Path, c.example.Path),
		bytes.Compare(req.Body, c.example.Body)) < 0 {
		c.example, c.up, c.here, c.detail = req, up, here, f.detail
	}
}

// acceptedFor is the reason why a cause is accepted, or nothing.
func (r *report) acceptedFor(text string) string {
	for _, a := range r.accepted {
		if a.pattern.MatchString(text) {
			return a.reason
		}
	}
	return ""
}

// size orders examples: the plainest first.
func size(r request) int { return len(r.Body) + 3*len(r.How) }

func (r *report) causes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.causeOf)
}

// open counts the causes that nobody has accepted.
func (r *report) open() int {
	n := 0
	for _, c := range r.sorted() {
		if c.accepted == "" {
			n++
		}
	}
	return n
}

// writeOpen writes the causes that nobody has accepted and that are there all the
// same.
func (r *report) writeOpen(file string) error {
	out := []string{"# Causes of the recorded requests that are still to be closed or accepted, one a line.",
		"# Written by make api-diff ARGS=-record; a line that is closed may be taken out."}
	for _, c := range r.sorted() {
		if c.accepted == "" {
			out = append(out, c.text)
		}
	}
	slices.Sort(out[2:])
	return os.WriteFile(file, []byte(strings.Join(out, "\n")+"\n"), 0o644)
}

// judgeOpen fails on a cause that is neither accepted nor known to be open, and
// tells how many of the latter are closed.
func (r *report) judgeOpen(file, results string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			known[line] = false
		}
	}
	var added strings.Builder
	for _, c := range r.sorted() {
		if _, ok := known[c.text]; ok {
			known[c.text] = true
		} else if c.accepted == "" {
			added.WriteString(c.line())
		}
	}
	closed := 0
	for _, seen := range known {
		if !seen {
			closed++
		}
	}
	if closed > 0 {
		fmt.Printf("%d of %d causes in %s are closed\n", closed, len(known), file)
	}
	if added.Len() > 0 {
		return fmt.Errorf("causes that are neither in %s nor in %s (requests in %s):\n%s", acceptedFile, file, results,
			added.String())
	}
	return nil
}

func (r *report) sorted() []*found {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.causeOf), func(a, b *found) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.text, b.text))
	})
}

func (r *report) summary() string {
	list := r.sorted()
	r.mu.Lock()
	defer r.mu.Unlock()
	accepted := 0
	for _, c := range list {
		if c.accepted != "" {
			accepted++
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d requests, %d answered alike (%.1f %%); %d causes, %d of them accepted; codes of upstream:",
		r.total, r.same, 100*float64(r.same)/float64(max(r.total, 1)), len(list), accepted)
	for _, code := range slices.Sorted(maps.Keys(r.upCodes)) {
		fmt.Fprintf(&out, " %d: %d", code, r.upCodes[code])
	}
	out.WriteString("\n")
	return out.String()
}

func (c *found) line() string {
	kinds := slices.Sorted(maps.Keys(c.kinds))
	of := strings.Join(kinds, " ")
	if len(kinds) > 6 {
		of = fmt.Sprintf("%s and %d more", strings.Join(kinds[:6], " "), len(kinds)-6)
	}
	return fmt.Sprintf("%5d  %s  [%s; %s]\n", c.count, c.text, of, strings.Join(slices.Sorted(maps.Keys(c.what)), ", "))
}

// write writes the causes with their requests, and, if asked, those without.
func (r *report) write(o options) error {
	list := r.sorted()
	head := fmt.Sprintf("# seed %d, N %d. %s", o.seed, o.n, r.summary())
	var long, short strings.Builder
	long.WriteString(head)
	short.WriteString(head)
	r.mu.Lock()
	for _, c := range list {
		if c.accepted == "" {
			short.WriteString(c.line())
		}
	}
	for _, c := range list {
		if c.accepted != "" {
			continue
		}
		long.WriteString("\n" + c.line())
		if c.detail != "" {
			fmt.Fprintf(&long, "   %s\n", c.detail)
		}
		fmt.Fprintf(&long, "   %s %s", c.example.Method, c.example.Path)
		if c.example.How != "" {
			fmt.Fprintf(&long, "   (%s)", cut(c.example.How, 300))
		}
		fmt.Fprintf(&long, "\n   %s\n   upstream %s\n   here     %s\n", cut(string(c.example.Body), 3000),
			c.up.brief(), c.here.brief())
	}
	long.WriteString("\n# Accepted:\n")
	for _, c := range list {
		if c.accepted != "" {
			fmt.Fprintf(&long, "%s        %s\n", c.line(), c.accepted)
		}
	}
	r.mu.Unlock()
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(o.out, []byte(long.String()), 0o644); err != nil || !o.write {
		return err
	}
	return os.WriteFile(resultsFile, []byte(short.String()), 0o644)
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// brief is a line about an answer.
func (a answer) brief() string {
	text := string(a.Body)
	var s struct{ Message string }
	if a.Code >= 400 && json.Unmarshal(a.Body, &s) == nil {
		text = s.Message
	}
	if len(a.Warnings) > 0 {
		text = strings.Join(a.Warnings, ", ") + " " + text
	}
	return fmt.Sprintf("%d %s", a.Code, cut(strings.ReplaceAll(text, "\n", " "), 700))
}
