package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/shoal-project/shoal/tests/leak"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestMain makes of this program what it is called: the command itself, or one
// of the daemons that it starts (daemons_test.go). So the scenarios need no
// built programs, and what they run is raced against itself as all tests are.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "shoal":
		main()
	case coordinatorBin:
		fakeCoordinator()
	case agentBin:
		fakeAgent()
	default:
		// Else each of these processes stays for a second at its end, under the
		// race detector.
		os.Setenv("GORACE", "atexit_sleep_ms=0")
		leak.Check(m)
	}
}

// TestScenarios plays the files of testdata. A line "$ command" is done; the
// lines up to the next one are what it prints on both streams, and "[N]" when
// its exit status is not 0. The archive's files are there at the beginning, in
// the directory $W that commands are run in; $PORT is a free port.
//
//	shoal ARGS...     the command, with fakes of the daemons beside it in bin/; the
//	                  help that up prints is left out
//	errors shoal ...  only what it prints on standard error
//	& shoal ARGS...   the same as a terminal has it that waits for it
//	interrupt         Ctrl-C there
//	nobody shoal ...  as another user than root
//	root              the rest needs root: up and down refuse all others
//	kill NAME         SIGKILL; a daemon's supervisor has started it again then
//	calls             how the daemons were called since the last time, sorted, for two
//	                  start at once
//	fail NAME TEXT    the daemon says TEXT and ends when it is started
//	cat FILE..., rm FILE...
//	add FILE LINE     a line at the end of a file
//	ls DIR            what is in it
//	mount DIR, umount DIR  something of somebody else's
//
// After a wanted change: go test ./agent/shoal -update, and read the diff.
func TestScenarios(t *testing.T) {
	var mu sync.Mutex
	given := map[string]bool{}
	transcript.Files(t, "testdata/*.txtar", func(t *testing.T, text string) string {
		t.Parallel()
		mu.Lock()
		port := freePort(t, given)
		mu.Unlock()
		a := txtar.Parse([]byte(text))
		s := newStage(t, port, a.Files)
		got := s.play(string(a.Comment))
		if s.refused && strings.HasPrefix(string(a.Comment), got) {
			t.Skip("the rest needs root: up and down refuse all others")
		}
		a.Comment = []byte(got)
		return string(txtar.Format(a))
	})
}

// stage is where one scenario plays.
type stage struct {
	t          *testing.T
	dir        string
	port       string
	foreground *exec.Cmd
	said       *output    // by foreground
	ended      chan error // what it ended with
	refused    bool       // as not root
}

func newStage(t *testing.T, port string, files []txtar.File) *stage {
	s := &stage{t: t, dir: t.TempDir(), port: port}
	for _, dir := range []string{filepath.Dir(s.dir), s.dir} { // for nobody's sake
		s.must(os.Chmod(dir, 0o755))
	}
	s.must(errors.Join(os.Mkdir(s.path("bin"), 0o755), putProgram(s.path("bin"), "shoal", coordinatorBin, agentBin)))
	for _, name := range []string{"conmon", "runc"} {
		s.must(os.WriteFile(s.path("bin", name), nil, 0o755))
	}
	for _, f := range files {
		s.must(os.MkdirAll(filepath.Dir(s.path(f.Name)), 0o755))
		s.must(os.WriteFile(s.path(f.Name), []byte(s.expand(string(f.Data))), 0o600))
	}
	t.Cleanup(s.end)
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// freePort is one that the kernel gives to nobody who connects, and that was not given yet.
func freePort(t *testing.T, given map[string]bool) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20000 + rand.N(10000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		_ = l.Close()
		if !given[port] {
			given[port] = true
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// end leaves no process of a scenario that went wrong, whoever started it.
func (s *stage) end() {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	s.must(err)
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && strings.HasPrefix(exe, s.dir) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if s.foreground != nil {
		<-s.ended
	}
}

// play does the commands of a script and returns it with what they print.
func (s *stage) play(script string) string {
	var out strings.Builder
	before := ""
	for line := range strings.Lines(script) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			out.WriteString(line + s.plain(s.do(strings.Fields(s.expand(command)))))
			if s.refused {
				break
			}
		} else if strings.HasPrefix(line, "#") {
			if before == "\n" {
				out.WriteString("\n")
			}
			out.WriteString(line)
		}
		before = line
	}
	return out.String()
}

func (s *stage) expand(text string) string {
	return strings.NewReplacer("$W", s.dir, "$PORT", s.port).Replace(text)
}

var (
	pids  = regexp.MustCompile(`\bpid \d+`)
	times = regexp.MustCompile(`(?m)^ *\d+\.\d\ds `)
	help  = regexp.MustCompile(`(?s)\nThe cluster is up\..*?\nStatus: `)
)

// plain leaves out what is different each time.
func (s *stage) plain(text string) string {
	text = strings.NewReplacer(s.dir, "$W", url.QueryEscape(s.dir), "$W", ":"+s.port, ":$PORT").Replace(text)
	text = times.ReplaceAllString(pids.ReplaceAllString(text, "pid N"), "TIME ")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

func (s *stage) do(args []string) string {
	s.t.Helper()
	switch args[0] {
	case "root":
		s.refused = os.Geteuid() != 0
	case "shoal":
		return help.ReplaceAllString(s.run(s.shoal(args[1:])), "...\nStatus: ")
	case "errors":
		cmd := s.shoal(args[2:])
		var out bytes.Buffer
		cmd.Stderr = &out
		err := cmd.Run()
		return out.String() + exitStatus(err)
	case "nobody":
		cmd := s.shoal(args[2:])
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		return s.run(cmd)
	case "&":
		return s.begin(s.shoal(args[2:]))
	case "interrupt":
		s.must(s.foreground.Process.Signal(os.Interrupt))
		err := <-s.ended
		s.foreground = nil
		return s.said.rest() + exitStatus(err)
	case "kill":
		s.kill(args[1])
	case "calls":
		text, _ := os.ReadFile(s.path("calls")) // none: there was none
		s.must(os.RemoveAll(s.path("calls")))
		return strings.Join(slices.Sorted(strings.Lines(string(text))), "")
	case "fail":
		s.must(os.WriteFile(s.path("bin", args[1]+".fails"), []byte(strings.Join(args[2:], " ")), 0o600))
	case "cat":
		var out string
		for _, file := range args[1:] {
			text, err := os.ReadFile(s.path(file))
			s.must(err)
			out += string(text)
		}
		return out
	case "add":
		text, err := os.ReadFile(s.path(args[1]))
		s.must(err)
		line := strings.Join(args[2:], " ") + "\n"
		s.must(os.WriteFile(s.path(args[1]), append(text, line...), 0o600))
	case "ls":
		entries, err := os.ReadDir(s.path(args[1]))
		s.must(err)
		var out string
		for _, e := range entries {
			out += e.Name() + "\n"
		}
		return out
	case "mount":
		dir := s.path(args[1])
		s.must(os.MkdirAll(dir, 0o755))
		s.must(syscall.Mount("mine", dir, "tmpfs", 0, ""))
		s.t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
		s.must(os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	case "umount":
		s.must(syscall.Unmount(s.path(args[1]), 0))
	case "rm":
		for _, file := range args[1:] {
			s.must(os.RemoveAll(s.path(file)))
		}
	default:
		s.t.Fatalf("no such command: %s", args[0])
	}
	return ""
}

func (s *stage) shoal(args []string) *exec.Cmd {
	cmd := exec.Command(s.path("bin", "shoal"), args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "PATH="+s.path("bin"))
	return cmd
}

func (s *stage) run(cmd *exec.Cmd) string {
	out, err := cmd.CombinedOutput()
	return string(out) + exitStatus(err)
}

// exitStatus is how a shell would tell of an end.
func exitStatus(err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &exit):
		return fmt.Sprintf("[%d]\n", exit.ExitCode())
	}
	return err.Error() + "\n"
}

// begin starts a command that does not return, and returns what it says up to
// the end of its help.
func (s *stage) begin(cmd *exec.Cmd) string {
	s.foreground, s.said = cmd, &output{wanted: "Stop: ", found: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = s.said, s.said
	s.must(cmd.Start())
	s.ended = make(chan error, 1)
	go func() { s.ended <- cmd.Wait() }()
	select {
	case <-s.said.found:
		return s.said.rest()
	case err := <-s.ended:
		s.foreground = nil
		return s.said.rest() + exitStatus(err)
	}
}

// output is what a process that runs has said so far.
type output struct {
	mu     sync.Mutex
	text   bytes.Buffer
	wanted string // in a line
	found  chan struct{}
}

// Write implements io.Writer.
func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.wanted != "" && bytes.Contains(data, []byte(o.wanted)) {
		o.wanted = ""
		defer close(o.found)
	}
	return o.text.Write(data)
}

// rest is what nobody has read yet.
func (o *output) rest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.text.Reset()
	return o.text.String()
}

// kill ends a process, and waits until the one that takes its place has begun.
func (s *stage) kill(name string) {
	s.t.Helper()
	file, program := s.path("data", "log", name+".pid"), "shoal-"+name
	if name == "supervisor" {
		file, program = s.path("data", "shoal.pid"), "shoal"
	}
	p, calls := running(file, program), s.calls(program)
	if p == nil {
		s.t.Fatalf("%s does not run", name)
	}
	s.must(p.Kill())
	// Polled: these processes are others' children.
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		now := running(file, program)
		back := now != nil && now.Pid != p.Pid && s.calls(program) > calls && s.serves(name)
		if back || name == "supervisor" && now == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s is not back", name)
		}
	}
}

// calls is how often a daemon was called.
func (s *stage) calls(program string) int {
	text, _ := os.ReadFile(s.path("calls")) // none: there was none
	return strings.Count(string(text), program+" --config")
}

// serves tells whether a coordinator answers; of others that they run is enough.
func (s *stage) serves(name string) bool {
	if name != "coordinator" {
		return true
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.port)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
