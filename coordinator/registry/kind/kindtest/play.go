package kindtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/tests/transcript"
)

// Play plays each file of testdata on a registry of its own. env changes what the
// kinds are given; nil: nothing.
func Play(t *testing.T, kinds []kind.Kind, env func(*kind.Env)) {
	t.Helper()
	transcript.Files(t, "testdata/*.txt", func(t *testing.T, text string) (got string) {
		synctest.Test(t, func(t *testing.T) { // so that ages are equal
			p, err := newPlayer(kinds, env)
			if err != nil {
				t.Fatal(err)
			}
			got = p.play(text)
		})
		return got
	})
}

// player is a registry and who asks it.
type player struct {
	env      *kind.Env
	kinds    map[string]kind.Kind    // by resource
	storages map[string]rest.Storage // by path
	user     user.Info
	warnings []string // of the request
	fields   []string // that are printed; none: all
}

func newPlayer(kinds []kind.Kind, change func(*kind.Env)) (*player, error) {
	scheme, err := kind.NewScheme(kinds)
	if err != nil {
		return nil, err
	}
	p := &player{kinds: map[string]kind.Kind{}, storages: map[string]rest.Storage{}}
	p.env = &kind.Env{Scheme: scheme, ParameterCodec: runtime.NewParameterCodec(scheme), RESTOptions: newMemory()}
	if change != nil {
		change(p.env)
	}
	stores := kind.Stores{}
	for _, k := range kinds {
		n := k.KindNames()
		if p.kinds[n.Resource] == nil { // of two groups' the first, as pods before the metrics of pods
			p.kinds[n.Resource] = k
		}
		store, err := k.NewStore(p.env)
		if err != nil {
			return nil, err
		}
		if store != nil {
			stores[n.GroupVersion.Group+"/"+n.Resource] = store
		}
	}
	for _, k := range kinds {
		all, err := k.Storages(p.env, stores)
		if err != nil {
			return nil, err
		}
		if p.kinds[k.KindNames().Resource] == k {
			maps.Copy(p.storages, all)
		}
	}
	return p, nil
}

// play does the commands of a script and returns it with what came of them.
func (p *player) play(script string) string {
	var out strings.Builder
	lines := slices.Collect(strings.Lines(script))
	for len(lines) > 0 {
		line := lines[0]
		lines = lines[1:]
		if isAnswer(line) {
			continue
		}
		out.WriteString(line)
		command, ok := strings.CutPrefix(line, "> ")
		if !ok {
			continue
		}
		end := slices.IndexFunc(lines, func(l string) bool {
			return l == "\n" || l[0] == '>' || l[0] == '#' || isAnswer(l)
		})
		if end < 0 {
			end = len(lines)
		}
		body := strings.Join(lines[:end], "")
		lines = lines[end:]
		out.WriteString(body)
		for _, answer := range p.do(strings.Fields(command), body) {
			fmt.Fprintf(&out, "= %s\n", answer)
		}
	}
	return out.String()
}

func isAnswer(line string) bool { return strings.HasPrefix(line, "= ") }

// AddWarning implements warning.Recorder.
func (p *player) AddWarning(_, text string) { p.warnings = append(p.warnings, "Warning: "+text) }

// do does one command and returns what it is answered.
func (p *player) do(command []string, body string) []string {
	if command[0] == "as" {
		p.user = &user.DefaultInfo{Name: command[1], Groups: command[2:]}
		return nil
	}
	if command[0] == "show" {
		p.fields = command[1:]
		return nil
	}
	p.warnings = nil
	answer, err := p.ask(command[0], command[1:], body)
	if err != nil {
		answer = append([]string{refusal(err)}, repeated(err)...)
	}
	return append(p.warnings, answer...)
}

func (p *player) ask(verb string, args []string, body string) ([]string, error) {
	resource, _, _ := strings.Cut(args[0], "/")
	k, storage := p.kinds[resource], p.storages[args[0]]
	if storage == nil {
		return nil, fmt.Errorf("no resource %s", args[0])
	}
	r := &asked{Scheme: p.env.Scheme, ctx: p.context(k, verb, args[0]), kind: k, storage: storage, body: body}
	switch verb {
	case "create":
		return p.show(r.create())
	case "update":
		return p.show(r.update(false))
	case "upsert":
		return p.show(r.update(true))
	case "get":
		return p.show(storage.(rest.Getter).Get(r.ctx, r.name(), &metav1.GetOptions{}))
	case "delete":
		return p.show(r.delete(len(args) > 1))
	case "table":
		return r.table()
	case "select":
		return r.selected(args[1])
	}
	return nil, fmt.Errorf("no verb %s", verb)
}

func (p *player) context(k kind.Kind, verb, path string) context.Context {
	namespace := "default"
	if k.KindNames().ClusterScoped {
		namespace = ""
	}
	ctx := warning.WithWarningRecorder(request.WithNamespace(request.NewContext(), namespace), p)
	if p.user != nil {
		ctx = request.WithUser(ctx, p.user)
	}
	resource, subresource, _ := strings.Cut(path, "/")
	gv := k.KindNames().GroupVersion
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: gv.Group, APIVersion: gv.Version,
		Resource: resource, Subresource: subresource, Namespace: namespace,
	})
}
