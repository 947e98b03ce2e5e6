package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// logMachine is a machine with logs in files, and a journal that knows two units; what
// journalctl is asked for is what it answers.
func logMachine(t *testing.T) *Server {
	t.Helper()
	dir := t.TempDir()
	journalctl := filepath.Join(dir, "journalctl")
	script := "#!/bin/sh\nif [ \"$1\" = --field=_SYSTEMD_UNIT ]; then printf 'shoal-agent.service\\nssh.service\\n'; exit; fi\n" +
		"echo \"$@\"\necho to stderr >&2\nexit 1\n"
	for name, text := range map[string]string{
		"journalctl": script, "log/web.log": "of web", "log/db/db.log": "of db", "log/apt/term": "of apt", "secret": "hidden",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(dir, "log", "out")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "log", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Server{NodeLogsDir: filepath.Join(dir, "log"), NodeLogQueries: true, Journalctl: journalctl}
}

// TestNodeLogQuery: what /logs/ answers to queries, in the kubelet's words.
func TestNodeLogQuery(t *testing.T) {
	s := logMachine(t)
	const journal = "--utc --no-pager --output=short-precise"
	for _, tt := range []struct {
		query string
		code  int
		want  string // the answer, or a part of it that begins with ...
	}{
		{"?query=ssh", 200, journal + " --unit=ssh\nto stderr\n"},
		{"?query=ssh&query=shoal-agent", 200, journal + " --unit=ssh --unit=shoal-agent\nto stderr\n"},
		{"?query=kubelet", 200, journal + " --unit=shoal-agent\nto stderr\n"},
		{"?query=ssh&sinceTime=2026-01-02T03:04:05%2B02:00&untilTime=2026-01-02T03:04:05Z&tailLines=7&pattern=a+b&boot=-1",
			200,
			journal + " --since=2026-01-02 01:04:05 UTC --until=2026-01-02 03:04:05 UTC --lines=7 --unit=ssh --grep=a b --boot=-1\n" +
				"to stderr\n"},
		{"?query=ssh&pattern=--file=/etc/shadow", 200, journal + " --unit=ssh --grep=--file=/etc/shadow\nto stderr\n"},
		{"?query=web", 200, "of web"},
		{"?query=web.log", 200, "of web"},
		{"?query=db", 200, "of db"},
		{"?query=none", 200, "\nlog not found for none\n"},
		{"?query=out", 200, "...error getting log for out"},
		{"?query=pipe", 200, "\nlog not found for pipe\n"},
		{"?query=ssh&query=web", 200, journal + " --unit=ssh\nto stderr\nof web"},
		{"?query=web&tailLines=1", 200,
			"\noptions present and query resolved to log files for [web]\ntry without specifying options\n"},
		{"?query=/apt/term", 200, "of apt"},
		{"?query=%5Capt%5Cterm", 200, "of apt"},
		{"?query=/", 200, "...web.log"},
		{"?query=/../secret", 406, "...query: Invalid value"},
		{"?query=/none", 406, "...query: Invalid value"},
		{"?query=/apt/term&tailLines=1", 406, "...cannot specify file with options"},
		{"?query=/apt/term&query=ssh", 406, "...cannot specify a file and service"},
		{"?query=/apt/term&query=/web.log", 406, "...cannot specify more than one file"},
		{"?tailLines=1", 406, "...query: Required value: cannot be empty with options"},
		{"?query=a&query=b&query=c&query=d&query=e", 406, "...query: Too many: 5: must have at most 4 items"},
		{"?query=a%0Ab", 406, "...input contains unsupported characters"},
		{"?query=" + strings.Repeat("a", 257), 406, "...length must be less than 256"},
		{"?query=ssh&boot=1", 406, "...boot: Invalid value: 1: must be less than 1"},
		{"?query=ssh&tailLines=-1", 406, "...tailLines: Invalid value: -1: must be between 0 and 100000"},
		{"?query=ssh&pattern=%28", 406, "...pattern: Invalid value"},
		{"?query=ssh&sinceTime=2026-01-02T03:04:06Z&untilTime=2026-01-02T03:04:05Z", 406, "...must be after `sinceTime`"},
		{"?query=", 400, "...query: Invalid value"},
		{"?query=++", 400, "...may not be empty"},
		{"?query=ssh&sinceTime=2026-01-02", 400, "...sinceTime: Invalid value: \"2026-01-02\": invalid time format"},
		{"?query=ssh&boot=x&tailLines=y", 400, "...boot: Invalid value"},
		{"apt/?query=ssh", 406, "path not allowed in query mode\n"},
		{"", 200, "...web.log"},
		{"?other=1", 200, "...web.log"},
		{"web.log", 200, "of web"},
		{"pipe", 404, "404 page not found\n"},
	} {
		w := httptest.NewRecorder()
		s.nodeLogs(w, httptest.NewRequest(http.MethodGet, "/logs/"+tt.query, nil))
		part, partly := strings.CutPrefix(tt.want, "...")
		got := w.Body.String()
		if w.Code != tt.code || partly && !strings.Contains(got, part) || !partly && got != tt.want ||
			strings.Contains(got, "hidden") {
			t.Errorf("%s: %d %q, want %d %q", tt.query, w.Code, got, tt.code, tt.want)
		}
	}
}

// TestNodeLogQueryOff: without enableSystemLogQuery a query is as if it were not there.
func TestNodeLogQueryOff(t *testing.T) {
	s := logMachine(t)
	s.NodeLogQueries = false
	w := httptest.NewRecorder()
	s.nodeLogs(w, httptest.NewRequest(http.MethodGet, "/logs/?query=ssh", nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `<a href="web.log">`) {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

// TestNodeLogQueryEnds: journalctl ends with the client that waits for it.
func TestNodeLogQueryEnds(t *testing.T) {
	s := logMachine(t)
	script := "#!/bin/sh\n[ \"$1\" = --field=_SYSTEMD_UNIT ] && echo ssh.service && exit\nexec sleep 1000\n"
	if err := os.WriteFile(s.Journalctl, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		s.nodeLogs(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/logs/?query=ssh", nil))
		close(ended)
	}()
	cancel()
	<-ended
}

// FuzzNodeLogQuery: whatever is asked for, journalctl gets no argument of the client's making.
func FuzzNodeLogQuery(f *testing.F) {
	f.Add("query=ssh&boot=-1&pattern=--x&tailLines=3&sinceTime=2026-01-02T03:04:05Z")
	f.Add("query=--file=x&query=/a")
	known := []string{"--utc", "--no-pager", "--output=short-precise", "--since=", "--until=", "--lines=", "--unit=",
		"--grep=", "--boot="}
	f.Fuzz(func(t *testing.T, text string) {
		in, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, err := parseLogQuery(in)
		if err != nil || q.validate() != nil {
			return
		}
		if len(q.services) > mostQueried || len(q.files) > 1 {
			t.Errorf("%d services, %d files", len(q.services), len(q.files))
		}
		for _, a := range q.arguments(q.services) {
			if !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(a, k) }) {
				t.Errorf("%q", a)
			}
		}
	})
}
