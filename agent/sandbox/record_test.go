package sandbox

import (
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// earlier is a record as agents wrote it since there are sandboxes: a node that is
// upgraded keeps its pods by it.
const earlier = `{"ID":"a1","Handler":"crun","CreatedAt":"2026-05-01T10:00:00Z","Ready":true,` +
	`"Networked":true,"IPs":["10.244.1.5","fd00::5"],` +
	`"Pins":{"net":"/run/a1/ns/net","uts":"/run/a1/ns/uts","ipc":"/run/a1/ns/ipc"},` +
	`"PIDPin":"/run/a1/ns/pid","HolderPID":1,"Cgroup":"/kubepods/pod-a1","OwnCgroup":true,"Dir":"/run/a1",` +
	`"Config":"Cg4KAWESBXVpZC1hGgJucxIBYQ=="}`

// TestRecordOfBefore: a record is read as it was meant, and a new one is like it.
func TestRecordOfBefore(t *testing.T) {
	cfg := Config{RecordDir: t.TempDir(), RunDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	file := filepath.Join(cfg.RecordDir, "a1.json")
	sum := crc32.ChecksumIEEE([]byte(earlier))
	if err := os.WriteFile(file, fmt.Appendf(nil, "%08x\n%s", sum, earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.Get("a1")
	if err != nil {
		t.Fatal(err)
	}
	if s.Ready || !s.Networked || fmt.Sprint(s.IPs) != "[10.244.1.5 fd00::5]" || s.NetNS() != "/run/a1/ns/net" ||
		s.PIDPin != "/run/a1/ns/pid" || s.HolderPID != 1 || s.Cgroup != "/kubepods/pod-a1" || !s.OwnCgroup ||
		s.Handler != "crun" || s.Dir != "/run/a1" || s.CreatedAt.IsZero() {
		t.Errorf("got %+v", s)
	}
	want := podConfig("a", nil)
	if !proto.Equal(s.Config.Metadata, want.Metadata) || s.Config.Hostname != "a" {
		t.Errorf("got %v", s.Config)
	}
	again, err := record{s}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(earlier, `"Ready":true`, `"Ready":false`, 1); string(again) != want {
		t.Errorf("written:\n%s\nread:\n%s", again, want)
	}
}
