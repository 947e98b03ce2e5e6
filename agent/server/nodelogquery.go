package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of KEP-2258, as the kubelet has them.
const (
	mostQueried  = 4
	longestName  = 256
	mostLines    = 100_000
	longestQuery = 30 * time.Second
)

var unitName = regexp.MustCompile(`^[a-zA-Z0-9\-_.:@]*$`)

// logQuery is what /logs/?query=… asks for (KEP-2258): the journal of systemd's units, or a
// file below the log directory. A zero logQuery is none.
type logQuery struct {
	services, files []string
	narrowed
}

// narrowed is which part of the journal is wanted; zero values for all of it.
type narrowed struct {
	since, until time.Time
	lines, boot  string // numbers
	pattern      string // a PCRE2 expression
}

// parseLogQuery reads the query of an URL; an error names the parameter.
func parseLogQuery(in url.Values) (logQuery, error) {
	var q logQuery
	var errs field.ErrorList
	bad := func(name string, value any, why string) {
		errs = append(errs, field.Invalid(field.NewPath(name), value, why))
	}
	for _, name := range in["query"] {
		switch {
		case strings.ContainsAny(name, `/\`):
			q.files = append(q.files, strings.ReplaceAll(name, `\`, "/"))
		case strings.TrimSpace(name) != "":
			q.services = append(q.services, name)
		}
	}
	if in.Has("query") && len(q.files)+len(q.services) == 0 {
		bad("query", in["query"], "may not be empty")
	}
	for name, to := range map[string]*time.Time{"sinceTime": &q.since, "untilTime": &q.until} {
		text := in.Get(name)
		if text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			bad(name, text, "invalid time format")
		}
		*to = at
	}
	for name, to := range map[string]*string{"tailLines": &q.lines, "boot": &q.boot} {
		text := in.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			bad(name, text, err.Error())
		}
		*to = strconv.Itoa(n)
	}
	q.pattern = in.Get("pattern")
	return q, errs.ToAggregate()
}

// none tells whether nothing is asked for but the files at the URL's path.
func (q *logQuery) none() bool {
	return len(q.files)+len(q.services) == 0 && q.narrowed == narrowed{}
}

// validate tells what cannot be answered.
func (q *logQuery) validate() error {
	var errs field.ErrorList
	query := field.NewPath("query")
	bad := func(name string, value any, why string) {
		errs = append(errs, field.Invalid(field.NewPath(name), value, why))
	}
	for _, s := range q.services {
		if len(s) > longestName {
			bad("query", s, fmt.Sprintf("length must be less than %d", longestName))
		}
		if !unitName.MatchString(s) {
			bad("query", s, "input contains unsupported characters")
		}
	}
	if len(q.services) > mostQueried {
		errs = append(errs, field.TooMany(query, len(q.services), mostQueried))
	}
	switch {
	case len(q.files)+len(q.services) == 0:
		errs = append(errs, field.Required(query, "cannot be empty with options"))
	case len(q.files) > 0 && len(q.services) > 0:
		bad("query", fmt.Sprintf("%v, %v", q.files, q.services), "cannot specify a file and service")
	case len(q.files) > 1:
		bad("query", q.files, "cannot specify more than one file")
	case len(q.files) == 1 && q.narrowed != narrowed{}:
		bad("query", q.files, "cannot specify file with options")
	}
	if !q.since.IsZero() && !q.until.IsZero() && q.since.After(q.until) {
		bad("untilTime", q.until.Format(time.RFC3339), "must be after `sinceTime`")
	}
	if n, _ := strconv.Atoi(q.boot); n > 0 {
		bad("boot", n, "must be less than 1")
	}
	if n, _ := strconv.Atoi(q.lines); q.lines != "" && (n < 0 || n > mostLines) {
		bad("tailLines", n, validation.InclusiveRangeError(0, mostLines))
	}
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		bad("pattern", q.pattern, err.Error())
	}
	return errs.ToAggregate()
}

// arguments are journalctl(1)'s for units.
func (q *logQuery) arguments(units []string) []string {
	out := []string{"--utc", "--no-pager", "--output=short-precise"}
	const when = "2006-01-02 15:04:05 UTC"
	if !q.since.IsZero() {
		out = append(out, "--since="+q.since.UTC().Format(when))
	}
	if !q.until.IsZero() {
		out = append(out, "--until="+q.until.UTC().Format(when))
	}
	if q.lines != "" {
		out = append(out, "--lines="+q.lines)
	}
	for _, u := range units {
		out = append(out, "--unit="+u)
	}
	if q.pattern != "" {
		out = append(out, "--grep="+q.pattern)
	}
	if q.boot != "" {
		out = append(out, "--boot="+q.boot)
	}
	return out
}

// queriedLogs answers a request with a query; it leaves others, and those for one file, to
// whoever shows files, at the path that they ask for.
func (s *Server) queriedLogs(w http.ResponseWriter, r *http.Request, root *os.Root) (answered bool, file string) {
	q, err := parseLogQuery(r.URL.Query())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return true, ""
	case q.none():
		return false, ""
	case strings.Trim(strings.TrimPrefix(r.URL.Path, "/logs"), "/") != "":
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return true, ""
	}
	if err := q.validate(); err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return true, ""
	}
	if len(q.files) > 0 {
		name := strings.TrimPrefix(path.Clean("/"+q.files[0]), "/")
		if _, err := root.Stat(cmp.Or(name, ".")); err != nil {
			err := field.Invalid(field.NewPath("query"), q.files[0], err.Error())
			http.Error(w, err.Error(), http.StatusNotAcceptable)
			return true, ""
		}
		return false, name
	}
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	ctx, cancel := context.WithTimeout(r.Context(), longestQuery)
	defer cancel()
	s.copyLogs(ctx, w, &q, root)
	return true, ""
}

// copyLogs writes the journal of the services that it knows, and then the files of others.
// Errors are lines of the answer, which has begun.
func (s *Server) copyLogs(ctx context.Context, w io.Writer, q *logQuery, root *os.Root) {
	known, _ := s.journal(ctx, "--field=_SYSTEMD_UNIT").Output()
	isUnit := func(name string) bool { return slices.Contains(strings.Fields(string(known)), name+".service") }
	var units, others []string
	for _, name := range q.services {
		if name == "kubelet" && !isUnit(name) && isUnit(ownUnit) {
			name = ownUnit // programs ask for the kubelet's log by this name
		}
		if isUnit(name) {
			units = append(units, name)
		} else {
			others = append(others, name)
		}
	}
	if len(units) > 0 {
		cmd := s.journal(ctx, q.arguments(units)...)
		cmd.Stdout, cmd.Stderr = w, w
		// It ends with an error of its own where nothing matches.
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			fmt.Fprintf(w, "\nerror: journal output not available: %v\n", err)
		}
	}
	if len(others) > 0 && q.narrowed != (narrowed{}) {
		fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n",
			others)
		return
	}
	for _, name := range others {
		copyLog(w, root, name)
	}
}

// ownUnit is what systemd calls the agent.
const ownUnit = "shoal-agent"

func (s *Server) journal(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, cmp.Or(s.Journalctl, "journalctl"), args...)
}

// copyLog writes the first file that is there of those in which a service may log.
func copyLog(w io.Writer, root *os.Root, service string) {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		err := copyFile(w, root, name)
		if err == nil {
			return
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", service, err)
			return
		}
	}
	fmt.Fprintf(w, "\nlog not found for %s\n", service)
}
