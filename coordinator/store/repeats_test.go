package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// logged is what etcd's logger makes of what log says, without times.
func logged(log func(*zap.Logger)) string {
	var out bytes.Buffer
	log(zap.New(newLogCore(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))))
	return strings.TrimSuffix(out.String(), "\n")
}

// A storm of one message is its first line, and a line with the number of the
// others; what etcd says later is told again.
func TestStormOfWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := logged(func(log *zap.Logger) {
			for i := range 474 {
				log.With(zap.Int("try", i)).Warn(fmt.Sprintf("request %d took too long", i))
			}
			log.Warn("another")
			time.Sleep(repeatWindow + time.Second)
			synctest.Wait()
			log.Warn("another")
			log.Warn("request 9 took too long")
		})
		want := `level=WARN msg="request 0 took too long" from=etcd try=0
level=WARN msg=another from=etcd
level=WARN msg="request 473 took too long" from=etcd more=473
level=WARN msg=another from=etcd
level=WARN msg="request 9 took too long" from=etcd`
		if got != want {
			t.Errorf("logged:\n%s", got)
		}
	})
}

// What was counted is told when etcd ends.
func TestStormIsToldAtTheEnd(t *testing.T) {
	got := logged(func(log *zap.Logger) {
		for range 3 {
			log.Error("failed")
		}
		_ = log.Sync()
	})
	if want := "level=ERROR msg=failed from=etcd\nlevel=ERROR msg=failed from=etcd more=2"; got != want {
		t.Errorf("logged:\n%s", got)
	}
}
