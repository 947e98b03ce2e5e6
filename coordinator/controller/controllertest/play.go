package controllertest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/tests/transcript"
)

// Play plays each file of testdata with a controller of its own.
func Play(t *testing.T, build func(controller.Env) (*controller.Loop, error)) {
	t.Helper()
	PlayDir(t, "testdata", build)
}

// PlayDir plays each file of a folder, for a package with several controllers.
func PlayDir(t *testing.T, dir string, build func(controller.Env) (*controller.Loop, error)) {
	t.Helper()
	transcript.Files(t, filepath.Join(dir, "*.txt"), func(t *testing.T, text string) (got string) {
		synctest.Test(t, func(t *testing.T) { got = play(t, build, text) })
		return got
	})
}

// play does the commands of a script and returns it with what the controller wrote.
func play(t *testing.T, build func(controller.Env) (*controller.Loop, error), script string) string {
	p := &player{t: t, api: newAPI(), events: &record.FakeRecorder{Events: make(chan string, eventsKept)}}
	defer p.start(build)()
	time.Sleep(10 * time.Millisecond) // its caches fill
	p.begin = time.Now()
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "= ") {
			continue
		}
		out.WriteString(line)
		if command, ok := strings.CutPrefix(line, "> "); ok {
			verb, rest, _ := strings.Cut(strings.TrimSpace(command), " ")
			out.WriteString(p.do(verb, rest))
		}
	}
	return out.String()
}

// eventsKept is more than a scenario has events.
const eventsKept = 10000

// player is a running controller and its API.
type player struct {
	t      *testing.T
	api    *api
	events *record.FakeRecorder
	begin  time.Time
}

// start runs the controller until stop.
func (p *player) start(build func(controller.Env) (*controller.Loop, error)) (stop func()) {
	ctx, cancel := context.WithCancel(p.t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(p.api.client, 0, informers.WithTransform(noType))
	loop, err := build(controller.Env{
		Client:    p.api.client,
		Informers: factory,
		Recorder:  func(string) record.EventRecorder { return p.events },
		Log:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	factory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			p.t.Error(err)
		}
	})
	return func() { cancel(); running.Wait(); factory.Shutdown() }
}

// noType takes an object's kind away, as reading what the real API sends does. The
// fake one leaves it in what was created.
func noType(obj any) (any, error) {
	if o, ok := obj.(runtime.Object); ok {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, nil
}

func (p *player) do(verb, rest string) string {
	switch verb {
	case "put", "delete":
		if err := p.api.change(verb, rest); err != nil {
			return fmt.Sprintf("= error: %v\n", err)
		}
	case "refuse":
		words := strings.Fields(rest)
		p.api.refuse(words[0], words[1], metav1.StatusReason(words[2]))
	case "wait":
		return p.wait(rest)
	case "events":
		return p.told()
	default:
		p.t.Fatalf("command %q", verb)
	}
	return p.writes()
}

func (p *player) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *player) wait(text string) string {
	d, err := time.ParseDuration(text)
	p.ok(err)
	time.Sleep(d)
	return p.writes()
}

// told returns the events since the last call, in the order of their words: those of
// one moment have no other.
func (p *player) told() string {
	synctest.Wait()
	var lines []string
	for len(p.events.Events) > 0 {
		lines = append(lines, "= "+<-p.events.Events+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// writes returns a line for each thing that the controller wrote since the last call,
// with the time since the beginning.
func (p *player) writes() string {
	synctest.Wait()
	var out strings.Builder
	for _, w := range p.api.taken() {
		if line := describe(w.action); line != "" {
			fmt.Fprintf(&out, "= %s %s\n", seconds(w.time.Sub(p.begin)), line)
		}
	}
	return out.String()
}

// seconds rounds up: what is done within a second counts as at its end.
func seconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

func describe(a clienttesting.Action) string {
	resource := a.GetResource().Resource
	if sub := a.GetSubresource(); sub != "" {
		resource += "/" + sub
	}
	switch a := a.(type) {
	case clienttesting.CreateActionImpl:
		return fmt.Sprintf("create %s %s", resource, show(a.Object, ""))
	case clienttesting.UpdateActionImpl:
		only := "" // of a status that is written, the rest says nothing
		if a.GetSubresource() == "status" {
			only = "status"
		}
		return fmt.Sprintf("update %s %s", resource, show(a.Object, only))
	case clienttesting.PatchActionImpl:
		return fmt.Sprintf("patch %s %s %s", resource, controller.Key(a.Namespace, a.Name), a.Patch)
	case clienttesting.DeleteActionImpl:
		how := string(ptr.Deref(a.DeleteOptions.PropagationPolicy, ""))
		return strings.TrimSpace(fmt.Sprintf("delete %s %s %s", resource, controller.Key(a.Namespace, a.Name), how))
	}
	return ""
}

// show prints an object: its key, and what it says beside its name, or only one
// field of that. Fields that are empty are left out.
func show(obj runtime.Object, only string) string {
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return err.Error()
	}
	m, _ := all["metadata"].(map[string]any)
	namespace, _ := m["namespace"].(string)
	name, _ := m["name"].(string)
	if name == "" {
		name, _ = m["generateName"].(string)
		name += "*"
	}
	for _, k := range []string{
		"name", "namespace", "generateName", "uid", "resourceVersion", "generation",
		"creationTimestamp", "managedFields",
	} {
		delete(m, k)
	}
	if len(m) == 0 {
		delete(all, "metadata")
	}
	delete(all, "apiVersion")
	delete(all, "kind")
	maps.DeleteFunc(all, func(name string, v any) bool {
		inner, isMap := v.(map[string]any)
		return only != "" && name != only || v == nil || v == "" || isMap && len(inner) == 0
	})
	text, err := json.Marshal(all)
	if err != nil {
		return err.Error()
	}
	return controller.Key(namespace, name) + " " + string(text)
}
