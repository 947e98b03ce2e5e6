package process

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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

// TestComplaintsOfLibraries: the same complaint comes once in five minutes, with how many
// more there were; another one at once.
func TestComplaintsOfLibraries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(newQuiet(slog.NewTextHandler(&out, nil), Libraries{}))
		for range 400 { // seconds
			log.Error("sync", "err", "no such kind")
			log.With("policy", "a").Error("sync", "err", "no such kind")
			log.Info("sync")
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for line, want := range map[string]int{
			`msg=sync err="no such kind"` + "\n": 2, `msg=sync err="no such kind" more=299` + "\n": 1,
			`msg=sync policy=a err="no such kind"` + "\n": 2, "level=INFO msg=sync\n": 400,
		} {
			if n := strings.Count(out.String(), line); n != want {
				t.Errorf("%q was told %d times, want %d", line, n, want)
			}
		}
	})
}

// TestRepeatsAreBounded: a library whose messages all differ takes no memory for them.
func TestRepeatsAreBounded(t *testing.T) {
	r := NewRepeats(time.Hour, func(struct{}, int) {})
	for i := range 10 * maxRepeats {
		if !r.First(strconv.Itoa(i), struct{}{}) || len(r.all) > maxRepeats {
			t.Fatalf("message %d: %d are known", i, len(r.all))
		}
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
