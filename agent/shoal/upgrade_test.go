package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-project/shoal/agent/upgrade"
)

const sumOfHello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

// asNode asks servers one after the other.
func asNode(servers ...http.HandlerFunc) (*health, func()) {
	h := &health{m: &machine{name: "one"}}
	var stop []func()
	for _, handler := range servers {
		s := httptest.NewServer(handler)
		stop = append(stop, s.Close)
		h.apis = append(h.apis, &api{server: s.URL, http: s.Client()})
	}
	return h, func() {
		for _, s := range stop {
			s()
		}
	}
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func refuses(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not here", http.StatusNotFound) }

// TestFetch: a coordinator that lacks the package, or has another, is no reason to stop
// as long as one has it.
func TestFetch(t *testing.T) {
	for _, c := range []struct {
		name    string
		servers []http.HandlerFunc
		why     string
	}{
		{"the first has it", []http.HandlerFunc{says("hello")}, ""},
		{"the last has it", []http.HandlerFunc{refuses, says("other"), says("hello")}, ""},
		{"none has it", []http.HandlerFunc{refuses}, "not here"},
		{"another came", []http.HandlerFunc{says("hello!")}, "has the digest"},
	} {
		h, stop := asNode(c.servers...)
		file := filepath.Join(t.TempDir(), "package")
		err := h.fetch(t.Context(), sumOfHello, file)
		stop()
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, not %q", c.name, err, c.why)
		}
		if data, _ := os.ReadFile(file); err == nil && string(data) != "hello" {
			t.Errorf("%s: %q", c.name, data)
		}
	}
}

const nodeText = `{"metadata":{"name":"one"},"status":{"conditions":[{"type":"Ready","status":"%READY"}],"nodeInfo":{"kubeletVersion":"%VERSION"}}}`

// TestLook: what makes a node well after an upgrade.
func TestLook(t *testing.T) {
	pods := func(id string) string {
		return `{"items":[{"metadata":{"name":"p","namespace":"n","uid":"u"},` +
			`"status":{"containerStatuses":[{"name":"c","ready":true,"containerID":"` + id + `"}]}}]}`
	}
	r := &upgrade.Record{Node: "one", From: "v1", To: "v2",
		Containers: map[string]string{"u/n/p/c": "shoal://1", "gone/n/q/c": "x"}}
	for _, c := range []struct{ name, ready, runs, container, wants, why string }{
		{"well", "True", "v2", "shoal://1", "v2", ""},
		{"the old one still", "True", "v1", "shoal://1", "v2", "has not told that it runs v2"},
		{"not Ready", "False", "v2", "shoal://1", "v2", "not Ready"},
		{"a container anew", "True", "v2", "shoal://2", "v2", "anew: n/p/c"},
		{"back, where no container is asked for", "True", "v1", "shoal://2", "v1", ""},
	} {
		h, stop := asNode(func(w http.ResponseWriter, q *http.Request) {
			if strings.HasPrefix(q.URL.Path, "/api/v1/nodes/") {
				_, _ = io.WriteString(w, strings.NewReplacer("%READY", c.ready, "%VERSION", c.runs).Replace(nodeText))
			} else {
				_, _ = io.WriteString(w, pods(c.container))
			}
		})
		err := h.look(t.Context(), r, c.wants)
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, not %q", c.name, err, c.why)
		}
		if strings.Contains(c.why, "anew") { // and is not waited for
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := h.wait(ctx, r, c.wants); !errors.Is(err, errRestarted) || ctx.Err() != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			cancel()
		}
		stop()
	}
}

func TestPlanOfFleet(t *testing.T) {
	node := func(name, version, ready, zone, address string) *fleetNode {
		n := &fleetNode{}
		text := strings.NewReplacer("%READY", ready, "%VERSION", version, `"one"`, `"`+name+`"`,
			`"metadata":{`, `"metadata":{"labels":{"topology.kubernetes.io/zone":"`+zone+`"},`,
			`"status":{`, `"status":{"addresses":[{"type":"InternalIP","address":"`+address+`"}],`).Replace(nodeText)
		if err := json.Unmarshal([]byte(text), n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	nodes := []*fleetNode{
		node("a1", "v1.36.3", "True", "a", "10.0.0.1"), node("c", "v1.36.3", "True", "a", "10.0.0.2"),
		node("a2", "v1.36.3", "True", "a", "10.0.0.3"), node("new", "v1.36.4", "True", "", "10.0.0.4"),
		node("ill", "v1.36.3", "False", "", "10.0.0.5"),
	}
	for _, c := range []struct {
		name string
		only []string
		want [][]string
		why  string
	}{
		{"all, with one that is ill", nil, nil, "node ill is not Ready"},
		{"some", []string{"a1", "c", "a2", "new"}, [][]string{{"c"}, {"a1", "a2"}}, ""},
		{"nobody", []string{"x"}, nil, "no such node"},
		{"one that has it", []string{"new"}, nil, ""},
	} {
		f := &fleetUpgrade{fleet: newFleet("", io.Discard), wish: upgrade.Wish{Version: "v1.36.4"}}
		got, err := f.plan(nodes, hostsOf([]string{"10.0.0.2:6443"},
			[]storeMember{{URL: "https://10.0.0.2:2380"}, {URL: "http://127.0.0.1:1"}}), c.only)
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, not %q", c.name, err, c.why)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if err == nil && !f.unready["ill"] {
			t.Errorf("%s: what was not Ready before is not known", c.name)
		}
	}
}

// TestTell: the result is told to the coordinator that answers.
func TestTell(t *testing.T) {
	var told string
	h, stop := asNode(refuses, func(w http.ResponseWriter, q *http.Request) {
		data, _ := io.ReadAll(q.Body)
		told = q.Method + " " + q.URL.Path + " " + string(data)
	})
	defer stop()
	if err := h.tell(t.Context(), upgrade.Result{ID: "x", Phase: upgrade.Done}); err != nil {
		t.Fatal(err)
	}
	const want = `PATCH /api/v1/nodes/one {"metadata":{"annotations":{"shoal-project.io/upgrade-result":"{\"id\":\"x\",\"phase\":\"done\"}"}}}`
	if strings.TrimSpace(told) != want {
		t.Errorf("%s", told)
	}
}

// TestPackageFile: --to is a file, or the version of one that is kept.
func TestPackageFile(t *testing.T) {
	dir := t.TempDir()
	given := filepath.Join(dir, "given.deb")
	for _, file := range []string{given, keptAs(dir, "v1.36.4+a", upgrade.Deb)} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ to, format, want string }{
		{given, upgrade.Deb, given},
		{"v1.36.4+a", upgrade.Deb, filepath.Join(dir, "shoal_1.36.4+a.deb")},
		{"1.36.4+a", upgrade.Deb, filepath.Join(dir, "shoal_1.36.4+a.deb")},
		{"v1.36.4+a", upgrade.RPM, ""},
		{"v1.36.5", upgrade.Deb, ""},
		{"x/../1.36.4+a", upgrade.Deb, ""},
	} {
		if got, err := packageFile(dir, c.to, c.format); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s as %s: %q, %v", c.to, c.format, got, err)
		}
	}
}
