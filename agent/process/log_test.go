package process

import (
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestLibrariesAreQuiet: of klog's records come those of the level, less the usual
// ones; the process's own all come.
func TestLibrariesAreQuiet(t *testing.T) {
	defer klog.ClearLogger()
	var out strings.Builder
	log := NewLogger(&out, slog.LevelInfo, Libraries{Level: slog.LevelError, Usual: []string{"Failed to watch"}})
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
