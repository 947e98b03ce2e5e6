package process

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
)

// TestLibrariesAreQuiet: of klog's records come those of the level, less the usual
// ones; the process's own all come.
func TestLibrariesAreQuiet(t *testing.T) {
	defer klog.ClearLogger()
	var out strings.Builder
	log := NewLogger(&out, Text, slog.LevelInfo, Libraries{Level: slog.LevelError, Usual: []string{"Failed to watch"}})
	klog.Info("starts")
	klog.Warning("is slow")
	klog.Error("Failed to watch pods")
	klog.Error("broke")
	log.Debug("detail")
	log.Info("Failed to watch, says the process")
	klog.Flush()
	var said []string
	for line := range strings.Lines(out.String()) {
		_, message, _ := strings.Cut(line, "msg=")
		said = append(said, strings.TrimSpace(message))
	}
	if got, want := strings.Join(said, "; "), `broke; "Failed to watch, says the process"`; got != want {
		t.Errorf("said %s, want %s", got, want)
	}
}

// TestJSON: SLG-7. One object a line, with the keys that upstream's have; a library's too.
func TestJSON(t *testing.T) {
	defer klog.ClearLogger()
	var out strings.Builder
	log := NewLogger(&out, JSON, slog.LevelDebug, Libraries{Level: slog.LevelError})
	before := float64(time.Now().UnixMilli())
	log.Info("two\nlines", "pod", "a/b", "after", 1500*time.Millisecond, "list", []string{"x"})
	log.Debug("detail")
	log.With("part", "x").WithGroup("g").Error("broke", "err", errors.New("no \"room\""), "time", "noon")
	klog.Error("library")
	klog.Flush()
	var got []string
	for line := range strings.Lines(out.String()) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if ts, ok := record["ts"].(float64); !ok || ts < before || ts > before+60_000 {
			t.Errorf("ts %v, it is %v", record["ts"], before)
		}
		delete(record, "ts")
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(text))
	}
	want := []string{
		`{"after":"1.5s","level":"info","list":["x"],"msg":"two\nlines","pod":"a/b","v":0}`,
		`{"level":"debug","msg":"detail","v":4}`,
		`{"g":{"err":"no \"room\"","time":"noon"},"level":"error","msg":"broke","part":"x","v":0}`,
		`{"level":"error","msg":"library","v":0}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
