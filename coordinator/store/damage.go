package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// checkFiles tells of what etcd would end the process for with no more than a stack, or
// would wait for without an end: a database that is no file, cannot be written or is none,
// and one whose log is gone. etcd makes a database again that is missing, from its log.
func checkFiles(dir string) (err error) {
	db := filepath.Join(dir, "member", "snap", "db")
	f, err := os.OpenFile(db, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", db)
	}
	if info.Size() == 0 {
		return nil // as if it were missing
	}
	defer func() { // the database's library panics on some damage
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v", db, p)
		}
	}()
	b, err := bolt.Open(db, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", db, err)
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("%s: %w", db, err)
	}
	logs, err := os.ReadDir(filepath.Join(dir, "member", "wal"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !slices.ContainsFunc(logs, func(e fs.DirEntry) bool {
		info, err := e.Info()
		return err == nil && strings.HasSuffix(e.Name(), ".wal") && info.Size() > 0
	}) {
		return fmt.Errorf("%s has no file, or an empty one, so the log of what is in %s is gone",
			filepath.Join(dir, "member", "wal"), db)
	}
	return nil
}

// starting has etcd's start end with an error where etcd would end the process: what it
// calls fatal, and panics. Once it has started that is left as it is.
type starting struct {
	done  atomic.Bool
	fatal chan error
}

// OnWrite is for what etcd's log calls fatal. It does not return.
func (s *starting) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	if s.done.Load() {
		if e.Level == zapcore.FatalLevel {
			zapcore.WriteThenFatal.OnWrite(e, fields)
		}
		zapcore.WriteThenPanic.OnWrite(e, fields)
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	err := errors.New(e.Message)
	if cause, ok := enc.Fields["error"].(string); ok {
		err = fmt.Errorf("%s: %s", e.Message, cause)
	}
	s.fail(err)
	runtime.Goexit()
}

// fail tells the first failure.
func (s *starting) fail(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

func (s *starting) options() []zap.Option {
	return []zap.Option{zap.WithFatalHook(s), zap.WithPanicHook(s)}
}

// run starts etcd. After a failure that etcd would have ended the process for, what it had
// begun is left behind: the process is to end.
func (s *starting) run(cfg *embed.Config) (*embed.Etcd, error) {
	started := make(chan *embed.Etcd, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.fail(fmt.Errorf("%v", p))
			}
		}()
		server, err := embed.StartEtcd(cfg)
		if err != nil {
			s.fail(err)
			return
		}
		started <- server
	}()
	select {
	case server := <-started:
		s.done.Store(true)
		return server, nil
	case err := <-s.fatal:
		return nil, err
	}
}
