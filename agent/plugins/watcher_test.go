package plugins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// patience bounds each wait of a test: it is reached when something is wrong.
const patience = time.Minute

// journal is what happened, line by line; tests wait for lines.
type journal struct {
	mu      sync.Mutex
	lines   []string
	changed chan struct{}
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
	close(j.changed)
	j.changed = make(chan struct{})
}

// await waits until there are as many lines as wanted, and compares.
func (j *journal) await(t *testing.T, want ...string) {
	t.Helper()
	limit := time.After(patience)
	for {
		j.mu.Lock()
		lines, changed := slices.Clone(j.lines), j.changed
		j.mu.Unlock()
		if len(lines) >= len(want) {
			if !slices.Equal(lines, want) {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
			}
			j.mu.Lock()
			j.lines = nil
			j.mu.Unlock()
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	}
}

// handler takes one plugin of a name, and one that is refused by name never.
type handler struct {
	*journal
	mu    sync.Mutex
	taken map[string]string
}

func (h *handler) Register(ctx context.Context, p Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if by := h.taken[p.Name]; by != "" {
		return fmt.Errorf("the name is taken by %s", filepath.Base(by))
	}
	h.taken[p.Name] = p.Endpoint
	h.add("register %s at %s %q", p.Name, filepath.Base(p.Endpoint), p.Versions)
	return nil
}

func (h *handler) Deregister(p Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.taken, p.Name)
	h.add("deregister %s at %s", p.Name, filepath.Base(p.Endpoint))
}

// program is a plugin that registers.
type program struct {
	registrationv1.UnimplementedRegistrationServer
	info   registrationv1.PluginInfo
	told   *journal
	silent chan struct{} // closed at the end of a program that answers nothing
	asked  chan struct{} // gets a token for each question of a silent one
}

func (p *program) GetInfo(ctx context.Context, _ *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	if p.silent != nil {
		p.asked <- struct{}{}
		select {
		case <-p.silent:
		case <-ctx.Done():
		}
		return nil, errors.New("too late")
	}
	return &p.info, nil
}

func (p *program) NotifyRegistrationStatus(_ context.Context, s *registrationv1.RegistrationStatus) (
	*registrationv1.RegistrationStatusResponse, error) {
	p.told.add("%s is told %v %q", p.info.Name, s.PluginRegistered, s.Error)
	return &registrationv1.RegistrationStatusResponse{}, nil
}

// start serves a program at a socket until stop is called, which removes it.
func start(t *testing.T, p *program, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registrationv1.RegisterRegistrationServer(s, p)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) }) // it returns when it is stopped
	var once sync.Once
	stop = func() {
		once.Do(func() {
			s.Stop()
			wg.Wait()
		})
	}
	t.Cleanup(stop)
	return stop
}

type test struct {
	dir      string
	handled  *journal
	told     *journal
	handlers *handler
}

// watch runs a watcher on a directory of its own.
func watch(t *testing.T, prepare func(dir string)) *test {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg") // short: a socket's name has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	x := &test{dir: dir, handled: newJournal(), told: newJournal()}
	x.handlers = &handler{journal: x.handled, taken: map[string]string{}}
	if prepare != nil {
		prepare(dir)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w := &Watcher{
		Dir:      dir,
		Handlers: map[string]Handler{registrationv1.CSIPlugin: x.handlers},
		Log:      slog.New(slog.DiscardHandler),
		pace:     pace{call: patience, first: time.Millisecond, last: 10 * time.Millisecond},
	}
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("it does not end")
		}
	})
	return x
}

func (x *test) csi(name string, versions ...string) *program {
	return &program{told: x.told, info: registrationv1.PluginInfo{Type: registrationv1.CSIPlugin, Name: name,
		Endpoint: "/run/" + name + ".sock", SupportedVersions: versions}}
}

// TestPluginComesAndGoes: wherever its socket appears, and as often as it does.
func TestPluginComesAndGoes(t *testing.T) {
	x := watch(t, nil)
	for _, place := range []string{"a.sock", "a.sock", "below/deeper/a.sock"} {
		path := filepath.Join(x.dir, place)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		stop := start(t, x.csi("a", "1.0.0", "1.1.0"), path)
		x.handled.await(t, `register a at a.sock ["1.0.0" "1.1.0"]`)
		x.told.await(t, `a is told true ""`)
		stop()
		x.handled.await(t, "deregister a at a.sock")
	}
}

// TestPluginBeforeAgent: sockets that are there already are found, and only
// sockets with names that do not begin with a dot.
func TestPluginBeforeAgent(t *testing.T) {
	elsewhere := t.TempDir()
	var x *test
	told := newJournal()
	x = watch(t, func(dir string) {
		for _, name := range []string{"below", ".hidden"} {
			if err := os.Mkdir(filepath.Join(dir, name), 0o750); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		here := &test{told: told}
		for name, place := range map[string]string{
			"found": filepath.Join(dir, "below/x"), "dotted": filepath.Join(dir, ".x"),
			"hidden": filepath.Join(dir, ".hidden/x"), "linked": filepath.Join(elsewhere, "x"),
		} {
			start(t, here.csi(name, "1.0.0"), place)
		}
		if err := os.Symlink(filepath.Join(elsewhere, "x"), filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
	})
	x.handled.await(t, `register found at found.sock ["1.0.0"]`)
	told.await(t, `found is told true ""`)
	// What comes after is found after all that was there.
	start(t, x.csi("last", "1.0.0"), filepath.Join(x.dir, "last"))
	x.handled.await(t, `register last at last.sock ["1.0.0"]`)
	told.await(t)
}

// TestPluginIsReplaced: another socket under the name of one that is registered
// is another plugin, also when nobody saw the old one go.
func TestPluginIsReplaced(t *testing.T) {
	x := watch(t, nil)
	path := filepath.Join(x.dir, "a.sock")
	start(t, x.csi("a", "1.0.0"), path)
	x.handled.await(t, `register a at a.sock ["1.0.0"]`)
	start(t, x.csi("a", "1.1.0"), path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	// It registers under its first name, is refused there or not, and then moves.
	limit := time.After(patience)
	for {
		x.handled.mu.Lock()
		lines, changed := slices.Clone(x.handled.lines), x.handled.changed
		x.handled.mu.Unlock()
		if n := len(lines); n > 1 && lines[0] == "deregister a at a.sock" &&
			lines[n-1] == `register a at a.sock ["1.1.0"]` {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("got %q", lines)
		}
	}
}

// TestPluginMoves: one that is refused because its name is taken is taken when
// the other goes, without a wait.
func TestPluginMoves(t *testing.T) {
	x := watch(t, nil)
	stop := start(t, x.csi("a", "1.0.0"), filepath.Join(x.dir, "old"))
	x.handled.await(t, `register a at a.sock ["1.0.0"]`)
	x.told.await(t, `a is told true ""`)
	moved := x.csi("a", "1.0.0")
	moved.info.Endpoint = "/run/new.sock"
	refused := newJournal()
	moved.told = refused
	start(t, moved, filepath.Join(x.dir, "new"))
	limit := time.After(patience)
	refused.mu.Lock()
	changed := refused.changed
	if len(refused.lines) > 0 {
		changed = nil
	}
	refused.mu.Unlock()
	if changed != nil {
		select {
		case <-changed:
		case <-limit:
			t.Fatal("it is not told")
		}
	}
	refused.mu.Lock()
	first := refused.lines[0]
	refused.mu.Unlock()
	if want := `a is told false "RegisterPlugin error -- the name is taken by a.sock"`; first != want {
		t.Errorf("got %s, want %s", first, want)
	}
	stop()
	x.handled.await(t, "deregister a at a.sock", `register a at new.sock ["1.0.0"]`)
}

// TestPluginOfAnotherType: it is told that nobody takes it.
func TestPluginOfAnotherType(t *testing.T) {
	x := watch(t, nil)
	other := x.csi("gpu", "v1beta1")
	other.info.Type = registrationv1.DevicePlugin
	path := filepath.Join(x.dir, "gpu")
	start(t, other, path)
	want := fmt.Sprintf("gpu is told false %q", "RegisterPlugin error -- no handler registered for plugin type: "+
		"DevicePlugin at socket "+path)
	limit := time.After(patience)
	for {
		x.told.mu.Lock()
		lines, changed := slices.Clone(x.told.lines), x.told.changed
		x.told.mu.Unlock()
		if len(lines) > 0 {
			if lines[0] != want {
				t.Errorf("got %s, want %s", lines[0], want)
			}
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatal("it is not told")
		}
	}
}

// TestWedgedPlugin: one that answers nothing holds up neither another nor the
// agent's end.
func TestWedgedPlugin(t *testing.T) {
	x := watch(t, nil)
	wedged := x.csi("wedged")
	wedged.silent, wedged.asked = make(chan struct{}), make(chan struct{}, 1)
	t.Cleanup(func() { close(wedged.silent) })
	start(t, wedged, filepath.Join(x.dir, "a"))
	select {
	case <-wedged.asked:
	case <-time.After(patience):
		t.Fatal("it is not asked")
	}
	start(t, x.csi("b", "1.0.0"), filepath.Join(x.dir, "b"))
	x.handled.await(t, `register b at b.sock ["1.0.0"]`)
}

// TestAgentEnds: plugins stay registered for the next agent.
func TestAgentEnds(outer *testing.T) {
	var x *test
	outer.Run("agent", func(t *testing.T) {
		x = watch(t, nil)
		start(outer, x.csi("a", "1.0.0"), filepath.Join(x.dir, "a"))
		x.handled.await(t, `register a at a.sock ["1.0.0"]`)
		x.told.await(t, `a is told true ""`)
	})
	x.handled.await(outer)
}
