package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		key, image string
		want       bool
	}{
		{"localhost:5000", "localhost:5000/a:1", true},
		{"https://r.example.com/v1/", "r.example.com/team/a", true},
		{"r.example.com/team", "r.example.com/other/a", false},
		{"*.example.com", "r.example.com/a", true},
		{"*.example.com", "example.com/a", false},
		{"*.example.com", "r.example.com:5000/a", false},
		{"r.example.*", "r.example.com:5000/a", false},
		{"r.example.*:5000", "r.example.com:5000/a", true},
		{"r.example.com:*", "r.example.com:5000/a", false},
		{"https://index.docker.io/v1/", "nginx", true},
	} {
		if got := Matches(c.key, c.image); got != c.want {
			t.Errorf("%s for %s: %v", c.key, c.image, got)
		}
	}
}

const program = `#!/bin/sh
echo x >>"$CALLS"
cat >"$ASKED"
case $1 in
wait) sleep 2;;
fail) echo "no token for you" >&2; exit 3;;
long) head -c 2000000 /dev/zero | tr '\0' ' ';;
esac
cat "$ANSWER"
`

// provider is a plugin whose program answers what it is given.
type provider struct {
	t   *testing.T
	dir string
}

func newProvider(t *testing.T) *provider {
	p := &provider{t, t.TempDir()}
	p.write("bin/provider", program, 0o755)
	return p
}

func (p *provider) path(name string) string { return filepath.Join(p.dir, name) }

func (p *provider) write(name, text string, mode os.FileMode) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
}

// load makes it of a configuration, of which more is a part of the provider.
func (p *provider) load(more string) []*Plugin {
	p.t.Helper()
	p.write("config.yaml", p.config(more), 0o600)
	list, err := LoadPlugins(p.path("config.yaml"), p.path("bin"))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

func (p *provider) config(more string) string {
	return `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.cloud.example", "localhost:5000/team"]
  defaultCacheDuration: 1h
  env: [{name: CALLS, value: "` + p.path("calls") + `"}, {name: ASKED, value: "` + p.path("asked") + `"},
    {name: ANSWER, value: "` + p.path("answer") + `"}]
` + more
}

func (p *provider) answer(more string) {
	p.write("answer", `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse",`+
		more+`}`, 0o600)
}

func (p *provider) calls() int {
	b, _ := os.ReadFile(p.path("calls"))
	return len(b) / 2
}

func users(list []*criv1.AuthConfig) (out []string) {
	for _, a := range list {
		out = append(out, a.Username+":"+a.Password)
	}
	return out
}

// What the node has comes from its file and from its plugins, the file's first.
func TestNode(t *testing.T) {
	p := newProvider(t)
	p.write("config.json", `{"auths":{"eu.cloud.example":{"username":"file","password":"f"},
		"other.example":{"auth":"eDp5"}}}`, 0o600)
	p.answer(`"cacheKeyType":"Registry","auth":{"*.cloud.example":{"username":"wide","password":"w"},
		"eu.cloud.example/team":{"username":"exact","password":"e"},"else.example":{"username":"no","password":"n"}}`)
	n := &Node{File: p.path("config.json"), Plugins: p.load("")}
	for image, want := range map[string]string{
		"eu.cloud.example/team/app:1":  "[file:f exact:e wide:w]",
		"eu.cloud.example/other/app:1": "[file:f wide:w]",
		"us.cloud.example/app":         "[wide:w]",
		"a.b.cloud.example/app":        "[]",
		"busybox":                      "[]",
	} {
		got, err := n.For(t.Context(), image)
		if err != nil || fmt.Sprint(users(got)) != want {
			t.Errorf("%s: %v, %v; want %s", image, users(got), err, want)
		}
	}
	var asked map[string]any
	b, _ := os.ReadFile(p.path("asked"))
	if err := json.Unmarshal(b, &asked); err != nil || asked["kind"] != "CredentialProviderRequest" ||
		asked["apiVersion"] != "credentialprovider.kubelet.k8s.io/v1" {
		t.Errorf("asked %s, %v", b, err)
	}
	if list, err := n.For(t.Context(), "other.example/a"); err != nil || len(list) != 1 || list[0].Auth != "eDp5" {
		t.Errorf("%v, %v", list, err)
	}
}

// An answer is kept as it says, for as long as it says.
func TestCache(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		images string
		calls  int
	}{
		"of a registry": {`"cacheKeyType":"Registry"`, "a.cloud.example/x:1 a.cloud.example/y b.cloud.example/x", 2},
		"of an image": {`"cacheKeyType":"Image"`,
			"a.cloud.example/x:1 a.cloud.example/x:2 a.cloud.example/y", 2},
		"of all": {`"cacheKeyType":"Global"`, "a.cloud.example/x b.cloud.example/y localhost:5000/team/z", 1},
		"not kept": {`"cacheKeyType":"Global","cacheDuration":"0s"`,
			"a.cloud.example/x a.cloud.example/x", 2},
		"kept for a moment": {`"cacheKeyType":"Global","cacheDuration":"1ns"`,
			"a.cloud.example/x a.cloud.example/x", 2},
		"no login, kept also": {`"cacheKeyType":"Global","auth":null`, "a.cloud.example/x a.cloud.example/x", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			p.answer(c.answer)
			n := &Node{Plugins: p.load("")}
			for _, image := range strings.Fields(c.images) {
				if _, err := n.For(t.Context(), image); err != nil {
					t.Error(err)
				}
			}
			if got := p.calls(); got != c.calls {
				t.Errorf("asked %d times, want %d", got, c.calls)
			}
		})
	}
}

// Pods that begin together ask once.
func TestAskedOnceAtATime(t *testing.T) {
	p := newProvider(t)
	p.answer(`"cacheKeyType":"Image","cacheDuration":"0s","auth":{"*.cloud.example":{"username":"u","password":"p"}}`)
	n := &Node{Plugins: p.load("  args: [wait]\n")}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got, err := n.For(t.Context(), "a.cloud.example/x"); err != nil || len(got) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	all.Wait()
	if got := p.calls(); got != 1 {
		t.Errorf("asked %d times", got)
	}
}

// A plugin that fails is told of; what others have is there.
func TestPluginFails(t *testing.T) {
	for name, c := range map[string]struct{ more, answer, want string }{
		"fails":          {"  args: [fail]\n", "", "no token for you"},
		"says too much":  {"  args: [long]\n", "", "longer than"},
		"says nothing":   {"", "", "its answer"},
		"says otherwise": {"", `{"kind":"Pod","apiVersion":"v1"}`, `v1 "Pod"`},
		"no kind of key": {"", `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse"}`,
			"cacheKeyType"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			p.write("answer", c.answer, 0o600)
			p.write("config.json", `{"auths":{"a.cloud.example":{"username":"file","password":"f"}}}`, 0o600)
			n := &Node{File: p.path("config.json"), Plugins: p.load(c.more)}
			got, err := n.For(t.Context(), "a.cloud.example/x")
			if len(got) != 1 || err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "credential provider provider") {
				t.Errorf("%v, %v", users(got), err)
			}
		})
	}
}

// A program that hangs leaves none of those behind that it started.
func TestHangingPluginEnds(t *testing.T) {
	dir := t.TempDir()
	path, started := filepath.Join(dir, "provider"), filepath.Join(dir, "started")
	script := fmt.Sprintf("#!/bin/sh\nsleep 300 >/dev/null 2>&1 &\n"+
		"echo $! >%[1]s.new\nmv %[1]s.new %[1]s\nwait\n", started)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var child int
	go func() {
		defer cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if b, err := os.ReadFile(started); err == nil {
				fmt.Sscan(string(b), &child)
				return
			}
		}
	}()
	if _, err := (&Plugin{name: "provider", path: path}).run(ctx, "a.example/x"); err == nil {
		t.Error("no error")
	}
	if child == 0 {
		t.Fatal("it did not start")
	}
	// Who has no parent any more is reaped by somebody else: a moment later, or never.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatalf("process %d runs on: %s", child, stat)
		}
	}
}

func TestFileFails(t *testing.T) {
	p := newProvider(t)
	n := &Node{File: p.path("config.json")}
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":  {"{", "config.json"},
		"too long": {strings.Repeat(" ", maxConfig+1), "longer than"},
	} {
		p.write("config.json", c.text, 0o600)
		got, err := n.For(t.Context(), "a.example/x")
		if len(got) != 0 || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestLoadPlugins(t *testing.T) {
	p := newProvider(t)
	good := p.config("")
	for name, c := range map[string]struct{ from, to, want string }{
		"another version":  {"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v2", "is known"},
		"another protocol": {"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1alpha1", "apiVersion"},
		"no program":       {"name: provider", "name: missing", "missing"},
		"a path":           {"name: provider", "name: ../bin/provider", "name: give"},
		"no images":        {`["*.cloud.example", "localhost:5000/team"]`, "[]", "matchImages"},
		"bad glob":         {`"*.cloud.example"`, `"[.example"`, "matchImages"},
		"a URL":            {`"*.cloud.example"`, `"https://a.example"`, "matchImages"},
		"no duration":      {"  defaultCacheDuration: 1h\n", "", "defaultCacheDuration"},
		"unknown field":    {"defaultCacheDuration", "defaultCacheDurations", "unknown field"},
		"tokens": {"  defaultCacheDuration: 1h\n", "  defaultCacheDuration: 1h\n" +
			"  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}\n",
			"tokenAttributes"},
		"no providers": {good[strings.Index(good, "- name"):], "", "no providers"},
	} {
		p.write("config.yaml", strings.Replace(good, c.from, c.to, 1), 0o600)
		_, err := LoadPlugins(p.path("config.yaml"), p.path("bin"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.write("config.d/1.yaml", good, 0o600)
	p.write("config.d/2.json", "[]", 0o000)
	p.write("config.d/readme", "nothing", 0o600)
	if _, err := LoadPlugins(p.path("config.d"), p.path("bin")); err == nil || !strings.Contains(err.Error(), "2.json") {
		t.Error(err)
	}
	p.write("bin/second", program, 0o755)
	if err := os.Remove(p.path("config.d/2.json")); err != nil {
		t.Fatal(err)
	}
	p.write("config.d/2.yml", strings.Replace(good, "name: provider", "name: second", 1), 0o600)
	if list, err := LoadPlugins(p.path("config.d"), p.path("bin")); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	p.write("config.d/2.yml", good, 0o600)
	_, err := LoadPlugins(p.path("config.d"), p.path("bin"))
	if err == nil || !strings.Contains(err.Error(), "two providers") {
		t.Error(err)
	}
	if _, err := LoadPlugins(p.path("nothing"), p.path("bin")); err == nil {
		t.Error("a file that is not there")
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Image",`+
		`"cacheDuration":"5m","auth":{"*.example":{"username":"u","password":"p"}}}`), "a.example/b:1")
	f.Fuzz(func(t *testing.T, b []byte, image string) {
		r, err := parseAnswer(b)
		if err != nil {
			return
		}
		p := &Plugin{cache: map[cacheKey]cached{}}
		p.keep(image, r, time.Now()).For(image)
		p.kept(image, time.Now())
	})
}
