package runtime

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestHugePagesAreTold: a node that has huge pages, and cannot hold containers to them, says so;
// no other does.
func TestHugePagesAreTold(t *testing.T) {
	for _, c := range []struct {
		has  int64
		why  string
		told int
	}{{0, "no controller", 0}, {2 << 20, "", 0}, {2 << 20, "no controller", 1}} {
		var log bytes.Buffer
		tellHugePages(slog.New(slog.NewTextHandler(&log, nil)), c.has, c.why)
		got := strings.Count(log.String(), "level=WARN")
		if got != c.told || got > 0 && !strings.Contains(log.String(), c.why) {
			t.Errorf("%+v: told is %s", c, &log)
		}
	}
}
