package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

const damagedSuffix = ".damaged"

// adopt seals what an earlier agent left in the clear, or under a key that is
// no longer the first, and sets aside what no key opens. It reads the beginning
// of each file. One that the disk does not give, or that cannot be changed, is told and
// left: the node does without that record.
func (s *Store[T]) adopt() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	foreign, inClear := 0, 0
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		head, err := beginning(path)
		switch {
		case strings.HasSuffix(e.Name(), ".tmp"):
			err = os.Remove(path)
		case strings.HasSuffix(e.Name(), suffix+damagedSuffix):
			if err == nil && !sealed(head) { // it may have a secret
				s.log.Info("a damaged record in the clear was removed", "file", path)
				err = os.Remove(path)
			}
		case !strings.HasSuffix(e.Name(), suffix) || err != nil || s.keys.current(head):
		case sealed(head) && !s.keys.knows(head):
			foreign++
			err = os.Rename(path, path+damagedSuffix)
		default:
			inClear++
			err = s.reseal(e.Name())
		}
		if err != nil {
			s.log.Error("a checkpoint record is left as it is", "file", path, "err", err)
		}
	}
	if foreign > 0 {
		s.log.Error(
			"records are sealed with another key and were moved aside; their state is read again from the runtime and the API. If they are needed, "+
				"put their key back as checkpointKeyFile or systemd credential, rename them back and restart the agent",
			"directory", s.dir, "records", foreign, "suffix", damagedSuffix)
	}
	if inClear > 0 {
		s.log.Info("records were sealed", "directory", s.dir, "records", inClear)
		s.flush()
	}
	return nil
}

// Foreign counts the records in a directory that are sealed with none of the
// keys, and the others. Open would set the former aside.
func Foreign(dir string, keys *Keys) (foreign, known int, err error) {
	entries, err := os.ReadDir(dir)
	if keys == nil || errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("checkpoint: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		head, err := beginning(filepath.Join(dir, e.Name()))
		if err != nil {
			return foreign, known, fmt.Errorf("checkpoint: %w", err)
		}
		if sealed(head) && !keys.knows(head) {
			foreign++
		} else {
			known++
		}
	}
	return foreign, known, nil
}

// reseal writes one record again. One that cannot be read is removed when it is
// in the clear, and else left for the reader to set aside.
func (s *Store[T]) reseal(name string) error {
	path := filepath.Join(s.dir, name)
	key, err := url.PathUnescape(strings.TrimSuffix(name, suffix))
	if err != nil {
		return nil // not a name of ours
	}
	data, err := readRecord(path)
	if err != nil {
		return err
	}
	body, err := s.decode(key, data)
	switch {
	case err == nil:
		return s.write(key, body)
	case sealed(data):
		return nil
	}
	s.log.Error(s.damaged, "record", key, "err", err, "file", "removed: it was in the clear")
	return os.Remove(path)
}

// beginning reads as much of a file as tells how it is sealed.
func beginning(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, headSize)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return head[:n], err
}

// readRecord reads a file that is not larger than a record can be.
func readRecord(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err == nil && len(data) > maxRecord {
		err = errTooLarge
	}
	return data, err
}
