package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shoal-project/shoal/coordinator/config"
)

// What an idle cluster does is not recorded, what someone does is, and never
// with its content.
func TestDefaultPolicy(t *testing.T) {
	rules, err := loadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]user.Info{
		"controller": &user.DefaultInfo{Name: "system:apiserver", Groups: []string{"system:masters", "system:authenticated"}},
		"node":       &user.DefaultInfo{Name: "system:node:a", Groups: []string{"system:nodes", "system:authenticated"}},
		"addon": &user.DefaultInfo{Name: "system:serviceaccount:kube-system:x",
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}},
		"anna":   &user.DefaultInfo{Name: "anna", Groups: []string{"system:authenticated"}},
		"nobody": &user.DefaultInfo{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}},
	}
	const none, metadata = auditinternal.LevelNone, auditinternal.LevelMetadata
	for _, c := range []struct {
		who, verb, what string
		want            auditinternal.Level
	}{
		{"controller", "update", "coordination.k8s.io/leases", none},
		{"controller", "get", "/pods", none},
		{"controller", "update", "discovery.k8s.io/endpointslices", none},
		{"controller", "create", "/pods", metadata},
		{"controller", "get", "/secrets", metadata},
		{"node", "patch", "/nodes/status", none},
		{"node", "patch", "/pods/status", none},
		{"node", "update", "coordination.k8s.io/leases", none},
		{"node", "watch", "/secrets", none},
		{"node", "list", "/secrets", metadata},
		{"node", "delete", "/pods", metadata},
		{"node", "create", "/serviceaccounts/token", metadata},
		{"addon", "list", "/pods", none},
		{"addon", "list", "/secrets", metadata},
		{"addon", "create", "rbac.authorization.k8s.io/clusterrolebindings", metadata},
		{"anna", "create", "/events", none},
		{"anna", "delete", "/events", metadata},
		{"anna", "deletecollection", "events.k8s.io/events", metadata},
		{"anna", "patch", "/nodes/status", metadata},
		{"anna", "update", "coordination.k8s.io/leases", metadata},
		{"anna", "get", "/pods", metadata},
		{"anna", "watch", "/secrets", metadata},
		{"anna", "create", "/pods/exec", metadata},
		{"anna", "get", "path:/apis/apps/v1", none},
		{"anna", "get", "path:/metrics", metadata},
		{"nobody", "get", "path:/readyz", none},
		{"nobody", "get", "path:/apis", metadata},
	} {
		a := authorizer.AttributesRecord{User: users[c.who], Verb: c.verb, Namespace: "ns", APIVersion: "v1"}
		if path, ok := strings.CutPrefix(c.what, "path:"); ok {
			a.Path = path
		} else {
			a.ResourceRequest = true
			var rest string
			a.APIGroup, rest, _ = strings.Cut(c.what, "/")
			a.Resource, a.Subresource, _ = strings.Cut(rest, "/")
		}
		if got := rules.EvaluatePolicyRule(a).Level; got != c.want {
			t.Errorf("%s %s %s: %s, want %s", c.who, c.verb, c.what, got, c.want)
		}
	}
}

// The log and its directory are their owner's alone, also where they existed.
func TestLogIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	c := config.Default().Audit
	a, err := New(c, dir, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if a.Backend == nil || a.Rules == nil {
		t.Fatal("nothing is recorded by default")
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "audit.log"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	c.AuditLogPath = config.NoAuditLog
	if a, err := New(c, dir, slog.Default()); err != nil || a.Backend != nil {
		t.Errorf("none: %v, %v", a, err)
	}
	c.AuditPolicyFile = filepath.Join(dir, "absent.yaml")
	if _, err := New(c, dir, slog.Default()); err == nil ||
		!strings.Contains(err.Error(), "auditPolicyFile "+c.AuditPolicyFile) {
		t.Errorf("absent policy: %v", err)
	}
}

// flakyWriter fails while full; of the first line it still takes a part.
type flakyWriter struct {
	full bool
	room int
	has  bytes.Buffer
}

func (w *flakyWriter) Write(p []byte) (int, error) {
	if w.full {
		n := min(w.room, len(p))
		w.room -= n
		w.has.Write(p[:n])
		return n, syscall.ENOSPC
	}
	return w.has.Write(p)
}

// A full disk stops nothing and is told once; strict mode is told of each.
func TestFullDisk(t *testing.T) {
	var said bytes.Buffer
	disk := &flakyWriter{full: true, room: 3}
	r := &reporter{to: disk, path: "audit.log", log: slog.New(slog.NewTextHandler(&said, nil))}
	for range 3 {
		if _, err := r.Write([]byte("lost\n")); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("got %v", err)
		}
	}
	disk.full = false
	for range 3 {
		if _, err := r.Write([]byte("kept\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got := disk.has.String(); got != "los\nkept\nkept\nkept\n" {
		t.Errorf("a whole event is on the line of a cut one: %q", got)
	}
	if got := strings.Count(said.String(), "\n"); got != 2 || !strings.Contains(said.String(), "lost=3") {
		t.Errorf("said %d lines:\n%s", got, said.String())
	}
}

// What anybody can send makes no long event, and the request keeps its own.
func TestLongRequests(t *testing.T) {
	long := strings.Repeat("ä", 1<<19)
	e := &auditinternal.Event{
		RequestURI: long,
		Verb:       long,
		AuditID:    types.UID(long),
		SourceIPs:  append(slices.Repeat([]string{"203.0.113.9"}, 1<<16), "192.0.2.1"),
		ObjectRef: &auditinternal.ObjectReference{Namespace: long, Name: long, Resource: long, Subresource: long,
			APIGroup: long, APIVersion: long},
	}
	var got []*auditinternal.Event
	b := bounded{sink(func(events ...*auditinternal.Event) { got = events })}
	b.ProcessEvents(e)
	data, err := json.Marshal(got[0])
	if err != nil || len(data) > 16<<10 || !utf8.Valid(data) || got[0].SourceIPs[maxSources-1] != "192.0.2.1" {
		t.Errorf("%d bytes, %v, from %v", len(data), err, got[0].SourceIPs)
	}
	if e.RequestURI != long || e.ObjectRef.Name != long || len(e.SourceIPs) != 1<<16+1 {
		t.Error("the request's own event was changed")
	}
	short := &auditinternal.Event{RequestURI: "/api"}
	if b.ProcessEvents(short); got[0] != short {
		t.Error("a short event was copied")
	}
}

// sink is a backend that hands on what it gets.
type sink func(events ...*auditinternal.Event)

func (s sink) ProcessEvents(events ...*auditinternal.Event) bool { s(events...); return true }
func (sink) Run(<-chan struct{}) error                           { return nil }
func (sink) Shutdown()                                           {}
func (sink) String() string                                      { return "sink" }
